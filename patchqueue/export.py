"""A work tree back to `patches/` and `series`."""

import re
from collections.abc import Sequence

from patchqueue.errors import QueueError
from patchqueue.layout import TREES, Layout
from patchqueue.patch import Patch
from patchqueue.pins import Pins
from patchqueue.series import Series
from patchqueue.worktree import WorkTree, formatted


def export(layout: Layout, names: Sequence[str] = TREES) -> list[str]:
    """Write the commits of the named work trees; return the paths that changed.

    Raises:
        QueueError: a tree is missing, dirty, half-way through a command, or has
            patches that are not applied. Nothing was written then.
    """
    pins = Pins.read(layout.pins)
    trees = [WorkTree(layout, pins.trees[name]) for name in names]
    stacks = [_stack(tree) for tree in trees]
    changed: list[str] = []
    for tree, stack in zip(trees, stacks, strict=True):
        changed += _write(tree, stack)
        tree.mark_saved()
    return changed


def _stack(tree: WorkTree) -> dict[str, bytes]:
    _refuse_unfinished(tree)
    stack = tree.stack()
    for name, patch in stack.items():
        _refuse_unreadable(tree, name, patch)
    return formatted(stack)


def _refuse_unreadable(tree: WorkTree, name: str, patch: Patch) -> None:
    """Refuse a message that git am would read otherwise than it was written."""
    for line in patch.body.splitlines():
        if line.startswith(("---", "diff ", "Index: ")):
            raise QueueError(
                f"{tree.shown}: '{line}' in the message of {name} reads as the start of its diff; "
                "indent or reword that line"
            )
    if re.match(r"\[[^]]*PATCH", patch.subject):
        raise QueueError(f"{tree.shown}: '{patch.subject}': git am drops such a tag; reword it")


def _refuse_unfinished(tree: WorkTree) -> None:
    if not tree.exists() or tree.base_tree() != tree.pin.tree_id:
        raise QueueError(
            f"{tree.shown} is not a work tree of {tree.pin.name} {tree.pin.version}; "
            "`nox -s apply` makes it"
        )
    if command := tree.in_progress():
        raise QueueError(
            f"{tree.shown}: a git {command} is half-way. Finish it with `git -C {tree.shown} "
            f"{command} --continue`, or give it up with `--abort`, then run this again"
        )
    if not tree.is_made_from_patches():
        raise QueueError(
            f"patches/{tree.pin.name} or series has changed since {tree.shown} was made from it, "
            "and exporting would undo that. `nox -s apply` takes the change up; where it refuses, "
            "go back to the commit of patches/ and series that the work tree was made from (`git "
            "stash -- patches series`), export, commit, and merge"
        )
    if unapplied := tree.stgit_unapplied():
        raise QueueError(
            f"{tree.shown}: {', '.join(unapplied)} not applied, and would be lost from the "
            f"series. `stg push --all` there, or `stg delete {unapplied[0]}` what is not wanted"
        )
    if changes := tree.dirty():
        raise QueueError(
            f"{tree.shown} has changes that no commit holds:\n{changes}\nFold them into a patch "
            "with `stg refresh` (or `git commit --amend`), or put them away with "
            "`git stash --include-untracked`"
        )


def _write(tree: WorkTree, stack: dict[str, bytes]) -> list[str]:
    layout, folder = tree.layout, tree.layout.patches / tree.pin.name
    changed = []
    for name, data in stack.items():
        path = folder / f"{name}.patch"
        if not path.is_file() or path.read_bytes() != data:
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(data)
            part.replace(path)
            changed.append(path)
    series = Series.read(layout.series)
    for name in sorted(set(series.names(tree.pin.name)) - set(stack)):
        stale = folder / f"{name}.patch"
        stale.unlink(missing_ok=True)
        changed.append(stale)
    replaced = series.replaced(tree.pin.name, list(stack))
    if replaced != series:
        replaced.write(layout.series)
        changed.append(layout.series)
    tree.name_commits(list(stack))
    return [layout.shown(path) for path in changed]
