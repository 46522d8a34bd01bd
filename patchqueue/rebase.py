"""The series onto other releases, in a scratch copy that nothing but `accept` takes over.

`work/rebase/` holds the copy: `pins.lock`, `series` and `patches/`, the work trees
below `work/`, and `progress.json`. Each work tree holds the series on the old
base as `refs/rebase/old`, so that git can merge three ways; `main` is the new base
and what has been brought over. Every step may be killed: the next command looks
at the commits and goes on.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchqueue import git, pick
from patchqueue.apply import am, forget_stgit, hand_to_stgit, reset
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.layout import Layout
from patchqueue.pin import pin
from patchqueue.pins import Pins
from patchqueue.progress import (
    CONFLICT,
    DROPPED,
    RESOLVED,
    SKIPPED,
    UPSTREAM,
    Progress,
    Step,
    digests,
)
from patchqueue.report import report
from patchqueue.worktree import BASE, WorkTree, read_patches

OLD = "refs/rebase/old"
_OLD_BASE = "refs/rebase/old-base"


@dataclass(frozen=True)
class Rebase:
    """The rebase of one checkout, whether it is in progress or not."""

    layout: Layout

    @property
    def scratch(self) -> Layout:
        """The copy of the queue that the rebase works in."""
        return self.layout.scratch(self.layout.root / "work" / "rebase")

    @property
    def file(self) -> Path:
        """Where the progress is kept."""
        return self.scratch.root / "progress.json"

    @property
    def report(self) -> Path:
        """The report, in Markdown."""
        return self.scratch.root / "report.md"

    def progress(self) -> Progress:
        """What has been done so far.

        Raises:
            QueueError: no rebase is in progress.
        """
        if not self.file.is_file():
            raise QueueError(
                "no rebase is in progress; `nox -s rebase -- vllm==X lmcache==Y` begins one"
            )
        return Progress.read(self.file)

    def save(self, progress: Progress) -> None:
        """Write the progress and the report."""
        progress.write(self.file)
        self.report.write_text(report(progress), encoding="utf-8")

    def tree(self, name: str) -> WorkTree:
        """A scratch work tree, pinned to the new release."""
        return WorkTree(self.scratch, Pins.read(self.scratch.pins).trees[name])

    # The commands

    def start(self, releases: Mapping[str, str]) -> Progress:
        """Begin to bring the series to other releases, and go as far as git can.

        Raises:
            QueueError: one is in progress, a release is missing, or nothing would move.
        """
        if self.file.is_file():
            raise QueueError(
                f"a rebase is in progress: {self.progress().title}. Go on with `nox -s rebase -- "
                "--continue`, or give it up with `-- --abort`"
            )
        before = {n: t.version for n, t in Pins.read(self.layout.pins).trees.items()}
        after = before | dict(releases)
        if after == before:
            raise QueueError("pins.lock already names these releases; there is nothing to rebase")
        for tree in after:
            read_patches(self.layout, tree)  # a series with a fault is refused before all work
        self._copy()
        try:
            lacking = pin(self.scratch, after, incomplete=True)
        except QueueError:
            self.abort()
            raise
        self.save(Progress(before, after, digests(self.layout), lacking))
        return self.go_on()

    def go_on(self) -> Progress:
        """Finish the patch in conflict, where there is one, and bring the others over.

        Raises:
            QueueError: a conflict, new or not resolved; the message says what to type.
        """
        progress = self.progress()
        self._check_start(progress)
        for name in progress.moved:
            tree = self.tree(name)
            if not self._prepared(tree):
                # A person may have removed the tree, and with it what was brought over.
                progress.steps = [step for step in progress.steps if step.tree != name]
                self._prepare(tree)
            old = git.text(tree.path, "rev-list", "--reverse", f"{_OLD_BASE}..{OLD}").split()
            for patch, commit in zip(tree.saved(), old, strict=True):
                self._bring(tree, patch, commit, progress)
            self._complete(tree, progress)
        self.save(progress)
        return progress

    def skip(self) -> Progress:
        """Leave the patch in conflict out, and bring the others over.

        Raises:
            QueueError: no patch is in conflict; or as `go_on`.
        """
        progress = self.progress()
        if progress.conflict is None:
            raise QueueError("no patch is in conflict; `nox -s rebase -- --continue` goes on")
        tree = self.tree(progress.conflict.tree)
        if self._prepared(tree):
            _expect_no_commit(tree, progress.conflict)
        progress.conflict.outcome = SKIPPED
        self.save(progress)
        return self.go_on()

    def abort(self) -> list[str]:
        """Drop the scratch copy, whole or half-made.

        Returns:
            The files of the queue that have changed since the rebase began.

        Raises:
            QueueError: there is none.
        """
        if not self.scratch.root.exists():
            raise QueueError("no rebase is in progress; there is nothing to drop")
        changed = self._changed()
        if self.file.is_file():
            self.file.unlink()
        shutil.rmtree(self.scratch.root, ignore_errors=True)
        return changed

    def _changed(self) -> list[str]:
        try:
            before = self.progress().files.items()
        except QueueError:  # it is damaged, or was not written yet
            return []
        return sorted({path for path, _ in before ^ digests(self.layout).items()})

    # The steps

    def _copy(self) -> None:
        """Make the scratch copy of the queue anew."""
        root = self.scratch.root
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
        shutil.copy(self.layout.series, root)
        shutil.copytree(self.layout.patches, self.scratch.patches)

    def _check_start(self, progress: Progress) -> None:
        if digests(self.layout) != progress.files:
            raise QueueError(
                "pins.lock, series or patches/ have changed since the rebase began, and it would "
                "undo that. Put the change away (`git stash -- pins.lock series patches`), or "
                "start over with `nox -s rebase -- --abort`"
            )

    def _prepared(self, tree: WorkTree) -> bool:
        at_new = tree.exists() and tree.base_tree() == tree.pin.tree_id
        return at_new and bool(pick.resolve(tree.path, OLD))

    def _prepare(self, tree: WorkTree) -> None:
        """Apply the series to the old base, and put the tree at the new one."""
        old = WorkTree(tree.layout, Pins.read(self.layout.pins).trees[tree.pin.name])
        paths = fetch(tree.layout.cache, [old.pin.sdist, tree.pin.sdist])
        old.ensure_base(paths[0])
        reset(old)
        am(old, list(old.saved()))
        git.output(tree.path, "update-ref", _OLD_BASE, BASE)
        stack = old.head()
        tree.ensure_base(paths[1])
        reset(tree)
        pick.remember_in(tree.path, tree.layout.cache / "resolutions" / tree.pin.name)
        git.output(tree.path, "update-ref", OLD, stack)  # last: the tree is ready

    def _bring(self, tree: WorkTree, name: str, commit: str, progress: Progress) -> None:
        """Bring one patch over, unless that is done."""
        done = progress.of(tree.pin.name)
        step = next((step for step in done if step.name == name), None)
        if step and step.outcome != CONFLICT:
            return
        finished = [other for other in done if other.outcome != CONFLICT]
        start = finished[-1].head if finished else pick.resolve(tree.path, BASE)
        untouched = tree.head() == start and not pick.picking(tree.path)
        if step is None or untouched:
            progress.steps = [other for other in progress.steps if other is not step]
            step = self._pick(tree, name, commit, start)
            progress.steps.append(step)
        else:
            self._resolved(tree, step, commit, start)
        self.save(progress)
        if step.outcome == CONFLICT:
            marked = (clash.file for clash in step.clashes if clash.line is not None)
            raise QueueError(_stopped(tree, step, pick.recall(tree.path, marked)))

    def _pick(self, tree: WorkTree, name: str, commit: str, start: str) -> Step:
        """Merge one patch, or take up what an interrupted run has merged."""
        if pick.picking(tree.path) not in ("", commit):
            pick.give_up(tree.path)  # the patch before, which is left out
        merged = not pick.unmerged(tree.path)
        if tree.head() == start and not pick.picking(tree.path):
            merged = pick.pick(tree.path, commit)
        if not merged:
            found = pick.clashes(tree.path)
            return Step(tree.pin.name, name, CONFLICT, start, found)
        if pick.picking(tree.path) and not pick.finish(tree.path, commit):
            return Step(tree.pin.name, name, UPSTREAM, start)
        _expect_child(tree, start)
        return Step(tree.pin.name, name, pick.compare(tree.path, commit, "HEAD"), tree.head())

    def _resolved(self, tree: WorkTree, step: Step, commit: str, start: str) -> None:
        """Take a conflict up that a human has resolved, committed or only staged."""
        if pick.picking(tree.path):
            try:
                left = pick.finish(tree.path, commit)
            except QueueError as error:
                raise QueueError(f"{tree.shown}: {step.entry}: {error}\n{_how(tree)}") from error
            if not left:
                step.outcome, step.head = UPSTREAM, start
                return
        _expect_child(tree, start)
        files = pick.changed(tree.path, start, "HEAD")
        if marks := pick.markers(tree.path, files, "HEAD"):
            raise QueueError(
                f"{tree.shown}: {step.entry}: conflict markers are left in:\n{marks}\n"
                "Edit the files there, `git commit --all --amend --no-edit`, then `nox -s rebase "
                "-- --continue`"
            )
        if not files:  # a commit that changes nothing says that upstream has all of it
            git.output(tree.path, "reset", "--quiet", "--soft", start)
            step.outcome, step.head = UPSTREAM, start
            return
        pick.drop_conflict_notes(tree.path)
        step.outcome, step.head = RESOLVED, tree.head()

    def _complete(self, tree: WorkTree, progress: Progress) -> None:
        """Name the commits, and hand them to StGit, once all patches are brought over."""
        if tree.is_made_from_patches():
            return
        if pick.picking(tree.path):
            pick.give_up(tree.path)  # the last patch, which is left out
        kept = [s.name for s in progress.of(tree.pin.name) if s.outcome not in DROPPED]
        tree.name_commits(kept)
        if tree.stgit_names() is None:
            forget_stgit(tree)
            hand_to_stgit(tree, kept)
        tree.mark_source()


def _expect_child(tree: WorkTree, start: str) -> None:
    """Check that HEAD is one commit above `start`."""
    if pick.resolve(tree.path, "HEAD^") != start:
        raise QueueError(
            f"{tree.shown}: HEAD should be one commit above {start[:12]}, and is not. "
            f"`git -C {tree.shown} log {start[:12]}..` shows what is there; make it one commit, or "
            f"`git -C {tree.shown} reset --hard {start[:12]}`, and `nox -s rebase -- --continue` "
            "merges the patch again"
        )


def _expect_no_commit(tree: WorkTree, step: Step) -> None:
    """Refuse to leave a patch out that a person has committed: it would pass as the next one."""
    if tree.head() != step.head:
        raise QueueError(
            f"{tree.shown}: {step.entry} has been committed there. `nox -s rebase -- --continue` "
            f"takes the commit; to leave the patch out all the same, `git -C {tree.shown} reset "
            f"--hard {step.head[:12]}`, then --skip"
        )


def _stopped(tree: WorkTree, step: Step, recalled: Sequence[str]) -> str:
    places = [f"  {c.file}" + (f":{c.line}" if c.line else f" ({c.text})") for c in step.clashes]
    filled = [f"  {file}" for file in recalled]
    if filled:
        filled = ["Resolved as in an earlier rebase; look at it, and `git add` it:", *filled]
    return "\n".join(
        [
            f"patches/{step.entry} conflicts with {tree.pin.name} {tree.pin.version}:",
            *places,
            *filled,
            _how(tree),
        ]
    )


def _how(tree: WorkTree) -> str:
    return (
        "To resolve it:\n"
        f"  cd {tree.shown}\n"
        "  git status                  # edit the files; <<< is upstream, >>> the patch\n"
        "  git add --all\n"
        "  cd - && nox -s rebase -- --continue\n"
        "Where upstream has all of it: `git read-tree --reset -u HEAD` there, then --continue.\n"
        "To leave the patch out for now: `nox -s rebase -- --skip`. To give up: `-- --abort`.\n"
        "Both sides are in work/rebase/report.md."
    )
