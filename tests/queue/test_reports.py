"""docs/reports.md names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`(?:(lmcache|vllm):)?(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| [\w./-]+#\d+ \|.*$", re.MULTILINE)
REPORTS = 20

rows = ROW.findall((ROOT / "docs/reports.md").read_text(encoding="utf-8"))


def test_every_report_is_there() -> None:
    assert len({row.split("|")[1] for row in rows}) == REPORTS


@pytest.mark.parametrize("row", rows, ids=lambda row: row.split("|")[1].strip())
def test_the_tests_of_a_report_exist(row: str) -> None:
    tests = TEST.findall(row)

    assert tests
    assert row.count("::") == len(tests)
    for tree, file, name in tests:
        assert re.search(rf"^ *def {name}\(", source_of(tree, file), re.MULTILINE), name


def source_of(tree: str, file: str) -> str:
    """Return a file of ours, or the lines of it that the patches of a tree add."""
    if not tree:
        return (ROOT / file).read_text(encoding="utf-8")
    added = []
    for patch in sorted((ROOT / "patches" / tree).glob("*.patch")):
        for part in re.split(r"^diff --git ", patch.read_text(encoding="utf-8"), flags=re.M):
            if part.startswith(f"a/{file} "):
                added += [line[1:] for line in part.splitlines() if line.startswith("+")]
    return "\n".join(added)
