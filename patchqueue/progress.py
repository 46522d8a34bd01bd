"""What a rebase has done so far, in a file that is always whole."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchqueue.errors import QueueError
from patchqueue.layout import Layout

CLEAN = "clean"
OFFSETS = "merged, offsets"
CONTEXT = "merged, context changed"
UPSTREAM = "already upstream"
CONFLICT = "conflict"
RESOLVED = "conflict, resolved"
SKIPPED = "conflict, skipped"
DROPPED = (UPSTREAM, SKIPPED)


@dataclasses.dataclass(frozen=True)
class Clash:
    """One place that git could not merge: a hunk with both sides, or a file as a whole."""

    file: str
    line: int | None
    text: str


@dataclasses.dataclass
class Step:
    """What became of one patch; `head` is the commit that the tree was left at."""

    tree: str
    name: str
    outcome: str
    head: str
    clashes: list[Clash] = dataclasses.field(default_factory=list)
    tests: str = ""

    @property
    def entry(self) -> str:
        """The patch as `series` names it."""
        return f"{self.tree}/{self.name}.patch"


@dataclasses.dataclass
class Progress:
    """The whole of it.

    Attributes:
        before: the releases that the queue is pinned to, by tree.
        after: the releases that it goes to, by tree.
        files: the sha256 of `pins.lock`, `series` and every patch at the start.
        lacking: the donor wheels that the new releases do not have, in words.
        steps: the patches that are done; the last may be in conflict.
    """

    before: dict[str, str]
    after: dict[str, str]
    files: dict[str, str]
    lacking: list[str] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)

    @property
    def moved(self) -> list[str]:
        """The trees that get another release."""
        return [tree for tree, version in self.after.items() if version != self.before[tree]]

    @property
    def conflict(self) -> Step | None:
        """The patch that waits for a human."""
        last = self.steps[-1] if self.steps else None
        return last if last and last.outcome == CONFLICT else None

    @property
    def wanted(self) -> int:
        """How many patches there are to bring over."""
        folders = tuple(f"patches/{tree}/" for tree in self.moved)
        return sum(path.startswith(folders) for path in self.files)

    def of(self, tree: str) -> list[Step]:
        """The steps of one tree."""
        return [step for step in self.steps if step.tree == tree]

    @property
    def title(self) -> str:
        """The releases, as in "vllm 0.32.0 to 0.33.0"."""
        return ", ".join(f"{t} {self.before[t]} to {self.after[t]}" for t in self.moved)

    def write(self, path: Path) -> None:
        """Replace the file at once."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Progress":
        """Read the file back.

        Raises:
            QueueError: it is damaged.
        """
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            steps = data.pop("steps")
            return cls(**data, steps=[_step(**step) for step in steps])
        except (ValueError, TypeError, KeyError) as error:
            raise QueueError(
                f"{path} is damaged ({error}); `nox -s rebase -- --abort` starts over"
            ) from error


def _step(clashes: Sequence[dict[str, Any]], **fields: Any) -> Step:
    return Step(clashes=[Clash(**clash) for clash in clashes], **fields)


def digests(layout: Layout) -> dict[str, str]:
    """The sha256 of all that a rebase will replace, by path from the queue's root."""
    files = [layout.pins, layout.series, *sorted(layout.patches.rglob("*.patch"))]
    return {
        str(file.relative_to(layout.root)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }
