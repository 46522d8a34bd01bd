"""Checks of rebased patches: upstream's own, and the guarding tests at each patch's place."""

from pathlib import Path

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.hooks import run_hooks
from patchqueue.pins import Pins
from patchqueue.platforms import Platform
from patchqueue.progress import CONFLICT, DROPPED, Progress, Step
from patchqueue.rebase import Rebase
from patchqueue.status import guards
from patchqueue.trial import run_tests
from patchqueue.worktree import BASE, read_patches

# LMCache's CUDA wheel holds the files that a CPU needs, too.
_CPU_FILES = {"vllm": "cpu", "lmcache": "cuda"}


def run_guards(rebase: Rebase) -> Progress:
    """Run the tests of every patch that is brought over and has not passed them yet.

    Raises:
        QueueError: a work tree holds what no applied commit does; tests run on commits.
    """
    progress = rebase.progress()
    _take_up_mended(rebase, progress)
    for step in progress.steps:
        if step.outcome not in (CONFLICT, *DROPPED) and (not step.tests or "\n" in step.tests):
            step.tests = _run(rebase, step)
            rebase.save(progress)
            first = step.tests.split("\n")[0]
            print(f"{step.entry}: {first}", flush=True)
    return progress


def run_checks(rebase: Rebase) -> Progress:
    """Run the new releases' own checks over the files that the rebased patches change.

    Raises:
        QueueError: a check objects.
    """
    progress, cache = rebase.progress(), rebase.layout.cache
    trees = [tree for tree in map(rebase.tree, progress.moved) if tree.exists()]
    objecting = [
        tree.shown
        for tree in trees
        if not run_hooks(tree.path, BASE, "HEAD", cache / "mypy" / tree.pin.name, cache)
    ]
    if objecting:
        raise QueueError(
            f"upstream's own checks object to the rebased files (above) in {', '.join(objecting)}. "
            "Mend the patches there (docs/patches.md), then `nox -s rebase -- --lint`"
        )
    return progress


def _take_up_mended(rebase: Rebase, progress: Progress) -> None:
    """Point the steps at today's commits, so that a patch mended since is tested anew."""
    for name in progress.moved:
        tree = rebase.tree(name)
        if not tree.exists() or not tree.is_made_from_patches():
            continue  # not all of its patches are brought over
        if tree.dirty() or tree.stgit_unapplied():
            raise QueueError(
                f"{tree.shown} has changes that no commit holds, or patches that are not applied, "
                "and tests run on commits. `stg refresh` and `stg push --all` there (or `git "
                "commit --amend`), then run this again"
            )
        ids = git.text(tree.path, "rev-list", "--reverse", f"{BASE}..HEAD").split()
        today = dict(zip(tree.stack(), ids, strict=True))
        for step in progress.of(name):
            if today.get(step.name, step.head) != step.head:
                step.head, step.tests = today[step.name], ""


def _run(rebase: Rebase, step: Step) -> str:
    tests = guards(read_patches(rebase.layout, step.tree)[step.name])
    tree = rebase.tree(step.tree)
    return str(run_tests(tree.path, step.head, step.tree, tests, _donor(rebase, step.tree)))


def _donor(rebase: Rebase, tree: str) -> Path | None:
    """The new release's wheel with files for this machine's CPU, where there is one."""
    here = Platform.here()
    pins = Pins.read(rebase.scratch.pins)
    try:
        donor = pins.donor(tree, _CPU_FILES[tree], here.machine, here.python)
    except QueueError:
        return None  # the report lists the wheels that are lacking
    return fetch(rebase.layout.cache, [donor])[0] if donor else None
