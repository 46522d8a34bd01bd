"""The guarding tests of rebased patches, each at its patch's place."""

from patchqueue.progress import CONFLICT, DROPPED, Progress, Step
from patchqueue.rebase import Rebase
from patchqueue.status import guards
from patchqueue.trial import run_tests
from patchqueue.worktree import read_patches


def run_guards(rebase: Rebase) -> Progress:
    """Run the tests of every patch that is brought over and has not passed them yet."""
    progress = rebase.progress()
    for step in progress.steps:
        if step.outcome not in (CONFLICT, *DROPPED) and (not step.tests or "\n" in step.tests):
            step.tests = _run(rebase, step)
            rebase.save(progress)
            first = step.tests.split("\n")[0]
            print(f"{step.entry}: {first}", flush=True)
    return progress


def _run(rebase: Rebase, step: Step) -> str:
    tests = guards(read_patches(rebase.layout, step.tree)[step.name])
    return str(run_tests(rebase.tree(step.tree).path, step.head, step.tree, tests))
