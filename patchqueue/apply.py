"""Pins and `patches/` to a work tree."""

import re
from pathlib import Path

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.layout import TREES, Layout
from patchqueue.pins import Pins
from patchqueue.worktree import BASE, SAVED, WorkTree

_AM = (
    "am --quiet --patch-format=stgit --keep-non-patch --keep-cr --no-3way "
    "--committer-date-is-author-date --whitespace=nowarn"
).split()


def apply(layout: Layout) -> list[WorkTree]:
    """Bring both work trees to what `pins.lock`, `series` and `patches/` ask for.

    Raises:
        QueueError: a work tree holds unsaved work, or a patch does not apply.
    """
    pins = Pins.read(layout.pins)
    trees = [WorkTree(layout, pins.trees[name]) for name in TREES]
    for tree in trees:
        if not tree.is_current():
            _apply(tree)
    return trees


def _apply(tree: WorkTree) -> None:
    names = list(tree.saved())
    if unsaved := tree.unsaved():
        raise QueueError(
            f"{tree.shown} holds {unsaved}\n"
            f"To keep it: commit it there, then `nox -s export` (docs/patches.md).\n"
            f"To drop it: `rm -rf {tree.shown}`, then run this again."
        )
    (sdist,) = fetch(tree.layout.cache, [tree.pin.sdist])
    tree.ensure_base(sdist)
    reset(tree)
    tree.mark_source()
    am(tree, names)
    tree.name_commits(names)
    hand_to_stgit(tree, names)
    tree.mark_saved()


def reset(tree: WorkTree) -> None:
    """Put the tree at its base, out of any command that was interrupted."""
    if command := tree.in_progress():
        git.output(tree.path, command, "--quit")
    git.run(tree.path, "checkout", "--quiet", "--force", "main")  # which may not exist yet
    forget_stgit(tree)
    git.output(tree.path, "checkout", "--quiet", "--force", "-B", "main", BASE)


def am(tree: WorkTree, names: list[str]) -> None:
    """Apply the patches with plain git.

    Raises:
        QueueError: a patch does not fit exactly; the tree stops before it.
    """
    folder = tree.layout.patches / tree.pin.name
    if not names:
        return
    done = git.run(tree.path, *_AM, *[str(folder / f"{name}.patch") for name in names])
    if done.returncode:
        git.output(tree.path, "update-ref", SAVED, "HEAD")
        applied = int(git.text(tree.path, "rev-list", "--count", f"{BASE}..HEAD"))
        raise QueueError(_conflict(tree, folder / f"{names[applied]}.patch", done.stderr.decode()))


def _conflict(tree: WorkTree, patch: Path, words: str) -> str:
    """What does not fit, and how to mend it."""
    check = git.run(tree.path, "apply", "--check", str(patch)).stderr.decode()
    failed = re.findall(r"^error: patch failed: (.+):(\d+)$", check, re.MULTILINE)
    shown = patch.relative_to(tree.layout.root)
    rejects = "".join(_reject(patch, file, int(line)) for file, line in failed)
    return (
        f"{shown} does not apply to {tree.pin.name} {tree.pin.version}:\n"
        f"{(check or words).strip()}\n{rejects}"
        "To repair it:\n"
        f"  cd {tree.shown}\n"
        f"  git apply --reject ../../{shown}   # what fits, and *.rej for what does not\n"
        "  ...edit the files, delete the *.rej, then:\n"
        "  git add --all && git am --continue\n"
        "  cd ../.. && nox -s export\n"
        f"To start over: rm -rf {tree.shown}"
    )


def _reject(patch: Path, file: str, line: int) -> str:
    """The hunk of `patch` that was meant for `line` of `file`."""
    text = patch.read_text(encoding="utf-8", errors="replace")
    section = text.partition(f"\n--- a/{file}\n")[2].partition("\ndiff --git ")[0]
    hunk = re.search(rf"^@@ -{line}[, ].*?(?=^@@ |\Z)", section, re.MULTILINE | re.DOTALL)
    return f"The hunk for {file} line {line}:\n{hunk[0].rstrip()}\n" if hunk else ""


def forget_stgit(tree: WorkTree) -> None:
    """Drop StGit's own records of the branch; the commits stay."""
    if tree.has_stgit_stack():
        git.output(tree.path, "branch", "--cleanup", "--force", program="stg")


def hand_to_stgit(tree: WorkTree, names: list[str]) -> None:
    """Turn the commits into StGit patches where `stg` is installed."""
    if not git.has_stgit():
        return
    git.output(tree.path, "init", program="stg")
    if names:
        git.output(tree.path, "uncommit", *reversed(names), program="stg")
