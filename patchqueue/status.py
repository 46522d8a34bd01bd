"""The series at a glance."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from patchqueue.errors import QueueError
from patchqueue.layout import TREES, Layout
from patchqueue.patch import Patch
from patchqueue.series import Series
from patchqueue.table import table
from patchqueue.worktree import read_patches

_HEAD = ("patch", "source", "tests", "docs", "guards", "upstream", "days")


@dataclass(frozen=True)
class Lines:
    """Lines that a patch adds and removes, together, by what they are."""

    source: int = 0
    tests: int = 0
    docs: int = 0

    def __add__(self, other: "Lines") -> "Lines":
        return Lines(self.source + other.source, self.tests + other.tests, self.docs + other.docs)


def status(layout: Layout, now: datetime | None = None) -> str:
    """The table of the series, and its total.

    Raises:
        QueueError: a patch has no test that guards it.
    """
    patches = {tree: read_patches(layout, tree) for tree in TREES}
    rows, total = [], Lines()
    for entry in Series.read(layout.series).entries():
        tree, _, file = entry.partition("/")
        patch = patches[tree][file.removesuffix(".patch")]
        total += lines(patch)
        rows.append(_row(entry, patch, now or datetime.now(UTC)))
    sums = _counts(total)
    rows.append((f"{len(rows)} patches", *sums, "", "", ""))
    text = table(_HEAD, rows)
    if bare := [row[0] for row in rows[:-1] if row[4] == "0"]:
        raise QueueError(f"{text}\nno test guards {', '.join(bare)}; its `Tests:` must name one")
    return text


def lines(patch: Patch) -> Lines:
    """What a patch changes."""
    total = Lines()
    for file, changed in _changed(patch):
        if file.startswith(("tests/", "test/")):
            total += Lines(tests=changed)
        elif file.startswith("docs/") or file.endswith((".md", ".rst")):
            total += Lines(docs=changed)
        else:
            total += Lines(source=changed)
    return total


def guards(patch: Patch) -> list[str]:
    """The test files that `Tests:` names and to which the patch adds lines."""
    listed = [name.strip() for name in (patch.trailer("Tests") or "").split(",")]
    added = {
        file
        for file, section in sections(patch)
        if re.search(r"(^|/)test_[^/]+\.py$", file) and re.search(r"^\+(?!\+\+ )", section, re.M)
    }
    return [name for name in listed if name in added]


def sections(patch: Patch) -> Iterable[tuple[str, str]]:
    """The diff of every file, by the file's name."""
    text = patch.diff.decode("utf-8", errors="replace")
    for section in re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"diff --git a/.+ b/(.+)\n", section)
        if name:
            yield name[1].strip('"'), section


def _changed(patch: Patch) -> Iterable[tuple[str, int]]:
    for file, section in sections(patch):
        hunks = section[section.find("\n@@ ") + 1 :]
        yield file, len(re.findall(r"^[+-]", hunks, re.MULTILINE))


def _row(entry: str, patch: Patch, now: datetime) -> tuple[str, ...]:
    age = now - datetime.strptime(patch.date, "%Y-%m-%d %H:%M:%S %z")
    kind = patch.trailer("Upstream-Status") or ""
    counts = _counts(lines(patch))
    return (entry, *counts, str(len(guards(patch))), kind, str(max(age.days, 0)))


def _counts(found: Lines) -> tuple[str, str, str]:
    return (str(found.source), str(found.tests), str(found.docs))
