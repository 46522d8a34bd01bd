"""The quilt-style `series`: one order over both trees, comment lines as headings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchqueue.errors import QueueError
from patchqueue.layout import TREES
from patchqueue.patch import NAME


@dataclass(frozen=True)
class Series:
    """The lines of the file; an entry is `<tree>/<name>.patch`."""

    lines: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Series":
        """Read and check the file.

        Raises:
            QueueError: it is missing, or a line is neither a comment nor an entry.
        """
        if not path.is_file():
            raise QueueError(f"{path} is missing; `git checkout -- series` brings it back")
        try:
            series = cls(tuple(path.read_text(encoding="utf-8").splitlines()))
        except UnicodeDecodeError as error:
            raise QueueError(f"{path} is not a text in UTF-8 ({error})") from error
        series.check()
        return series

    def check(self) -> None:
        """Raise QueueError on the first line that is wrong."""
        seen: set[str] = set()
        for number, line in enumerate(self.lines, 1):
            if not _is_entry(line):
                continue
            tree, _, file = line.partition("/")
            if tree not in TREES or not file.endswith(".patch"):
                raise QueueError(
                    f"series line {number}: '{line}' is not <tree>/<name>.patch with a "
                    f"tree among {', '.join(TREES)}"
                )
            if not NAME.fullmatch(file.removesuffix(".patch")):
                raise QueueError(
                    f"series line {number}: the name '{file}' must be lower-case words "
                    "joined by hyphens, as in 'fs-l2-load-concurrency.patch'"
                )
            if line in seen:
                raise QueueError(f"series line {number}: '{line}' is listed twice")
            seen.add(line)

    def entries(self) -> list[str]:
        """Every entry, in order."""
        return [line for line in self.lines if _is_entry(line)]

    def names(self, tree: str) -> list[str]:
        """The names of a tree's patches, in order, without folder and suffix."""
        prefix = f"{tree}/"
        return [
            entry.removeprefix(prefix).removesuffix(".patch")
            for entry in self.entries()
            if entry.startswith(prefix)
        ]

    def replaced(self, tree: str, names: Sequence[str]) -> "Series":
        """The series with `tree`'s patches being `names`: headings and the other tree stay.

        Kept patches take the kept lines in their new order; a new patch follows its
        predecessor.
        """
        kept = iter([name for name in names if name in self.names(tree)])
        lines: list[str] = []
        for line in self.lines:
            if not line.startswith(f"{tree}/"):
                lines.append(line)
            elif line.removeprefix(f"{tree}/").removesuffix(".patch") in names:
                lines.append(_entry(tree, next(kept)))
        for position, name in enumerate(names):
            if _entry(tree, name) in lines:
                continue
            before = names[position - 1] if position else None
            at = lines.index(_entry(tree, before)) + 1 if before else _first(lines, tree)
            lines.insert(at, _entry(tree, name))
        return Series(tuple(lines))

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_bytes(self.format())

    def format(self) -> bytes:
        """The bytes of the file."""
        return "".join(f"{line}\n" for line in self.lines).encode()


def _is_entry(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _entry(tree: str, name: str) -> str:
    return f"{tree}/{name}.patch"


def _first(lines: Sequence[str], tree: str) -> int:
    """Where a tree's first patch goes: before its present first, or at the end."""
    for number, line in enumerate(lines):
        if line.startswith(f"{tree}/"):
            return number
    return len(lines)
