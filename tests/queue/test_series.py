from pathlib import Path

import pytest

from patchqueue.errors import QueueError
from patchqueue.series import Series

SERIES = Series(("# Fixes", "lmcache/a.patch", "vllm/x.patch", "", "# Features", "lmcache/b.patch"))


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (["a", "b"], SERIES.lines),
        (
            ["b", "a"],
            ("# Fixes", "lmcache/b.patch", "vllm/x.patch", "", "# Features", "lmcache/a.patch"),
        ),
        (["a"], ("# Fixes", "lmcache/a.patch", "vllm/x.patch", "", "# Features")),
        (["a", "n", "b"], ("# Fixes", "lmcache/a.patch", "lmcache/n.patch", *SERIES.lines[2:])),
        (["n", "a", "b"], ("# Fixes", "lmcache/n.patch", *SERIES.lines[1:])),
        ([], ("# Fixes", "vllm/x.patch", "", "# Features")),
    ],
)
def test_replacing_keeps_headings_and_the_other_tree(names: list[str], lines: tuple[str]) -> None:
    assert SERIES.replaced("lmcache", names).lines == lines


def test_the_first_patch_of_a_tree_goes_to_the_end() -> None:
    assert Series(("# Fixes",)).replaced("vllm", ["x", "y"]).lines == (
        "# Fixes",
        "vllm/x.patch",
        "vllm/y.patch",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sglang/a.patch", "tree among lmcache, vllm"),
        ("lmcache/a.diff", r"not <tree>/<name>\.patch"),
        ("lmcache/a.patch -p0", r"not <tree>/<name>\.patch"),
        ("lmcache/0001-a.patch", "lower-case words"),
        ("lmcache/A_b.patch", "lower-case words"),
        ("lmcache/a.patch", "listed twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "series"
    path.write_text(f"lmcache/a.patch\n{line}\n")
    with pytest.raises(QueueError, match=f"series line 2: .*{message}"):
        Series.read(path)


def test_a_missing_series_is_named(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="git checkout -- series"):
        Series.read(tmp_path / "series")
