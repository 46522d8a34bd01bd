"""The result of a rebase into the queue: its files and pins in one commit."""

import hashlib
import os
import subprocess
from pathlib import Path

from patchqueue.errors import QueueError
from patchqueue.export import export
from patchqueue.layout import Layout
from patchqueue.pin import pin
from patchqueue.progress import CONFLICT, DROPPED, SKIPPED, Progress, digests
from patchqueue.rebase import Rebase
from patchqueue.report import summary
from patchqueue.worktree import WorkTree

_PATHS = ("pins.lock", "series", "patches/*.patch")


def accept(rebase: Rebase) -> str:
    """Write the rebased series and the new pins, commit both, and drop the scratch copy.

    Returns:
        The subject of the commit.

    Raises:
        QueueError: the rebase is not finished, a donor wheel is missing, or the queue
            has changed in the meantime. Nothing was written then.
    """
    progress = rebase.progress()
    _check_finished(progress)
    _git(rebase.layout, "rev-parse", "--git-dir")
    if progress.lacking:
        pin(rebase.scratch, progress.after)
    _check_kept(rebase, progress)
    export(rebase.scratch, progress.moved)
    wanted = digests(rebase.scratch)
    _check_unchanged(rebase.layout, progress, wanted)
    _copy(rebase.scratch, rebase.layout, wanted)
    subject = _commit(rebase.layout, progress)
    rebase.abort()
    return subject


def _check_finished(progress: Progress) -> None:
    brought = {f"patches/{step.entry}": step.outcome for step in progress.steps}
    for path in progress.files:
        moved = path.startswith(tuple(f"patches/{tree}/" for tree in progress.moved))
        if moved and brought.get(path, CONFLICT) == CONFLICT:
            raise QueueError(
                f"{path} has not been brought over yet; `nox -s rebase -- --continue` goes on"
            )
    if skipped := [entry for entry, outcome in brought.items() if outcome == SKIPPED]:
        raise QueueError(
            f"{', '.join(skipped)} left out with --skip, and would be lost. Drop it from the queue "
            "first (docs/patches.md) and rebase again, or rebase again and resolve it"
        )


def _check_kept(rebase: Rebase, progress: Progress) -> None:
    """Refuse when a patch that was brought over is not among the commits checked out."""
    for tree in filter(WorkTree.exists, map(rebase.tree, progress.moved)):
        kept = [s for s in progress.of(tree.pin.name) if s.outcome not in DROPPED]
        there = tree.stack()
        if lost := [step.entry for step in kept if step.name not in there]:
            raise QueueError(
                f"{tree.shown}: what is checked out lacks {', '.join(lost)}, which would be lost. "
                "`git switch main` or `stg push --all` there brings it back; a patch that is not "
                "wanted, or is to have another name, waits until after --accept (docs/patches.md)"
            )


def _check_unchanged(layout: Layout, progress: Progress, wanted: dict[str, str]) -> None:
    """Refuse when a file is neither as it was at the start nor as it will be."""
    for path, found in digests(layout).items():
        if found not in (progress.files.get(path), wanted.get(path)):
            raise QueueError(
                f"{path} has changed since the rebase began, and --accept would undo that. Put the "
                f"change away (`git stash -- {path}`) and run this again"
            )


def _copy(scratch: Layout, layout: Layout, wanted: dict[str, str]) -> None:
    for path in wanted:
        data = (scratch.root / path).read_bytes()
        target = layout.root / path
        if not target.is_file() or hashlib.sha256(target.read_bytes()).hexdigest() != wanted[path]:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = Path(f"{target}.part")
            part.write_bytes(data)
            part.replace(target)
    for path in digests(layout).keys() - wanted.keys():
        (layout.root / path).unlink()


def _commit(layout: Layout, progress: Progress) -> str:
    """Commit under the user's own name, and leave what else is staged alone."""
    goals = ", ".join(f"{tree} {progress.after[tree]}" for tree in progress.moved)
    subject = f"Rebase onto {goals}"
    steps = "\n".join(f"{step.entry}: {step.outcome}" for step in progress.steps)
    message = f"{subject}\n\n{progress.title}: {summary(progress)}.\n\n{steps}\n"
    _git(layout, "add", "--all", "--", *_PATHS)
    if _git(layout, "diff", "--cached", "--name-only", "--", *_PATHS):
        _git(layout, "commit", "--quiet", "-m", message, "--", *_PATHS)
    return subject


def _git(layout: Layout, *args: str) -> str:
    """Run the user's own git, with their name and their hooks, in the checkout."""
    done = subprocess.run(
        ["git", *args],
        cwd=layout.root,
        env=os.environ | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise QueueError(
            f"git {args[0]} failed in {layout.root}; mend it and run this again:\n{words}"
        )
    return done.stdout.strip()
