"""The guarding tests of rebased patches, each at its patch's place."""

from pathlib import Path

from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.pins import Pins
from patchqueue.platforms import Platform
from patchqueue.progress import CONFLICT, DROPPED, Progress, Step
from patchqueue.rebase import Rebase
from patchqueue.status import guards
from patchqueue.trial import run_tests
from patchqueue.worktree import read_patches

# LMCache's CUDA wheel holds the files that a CPU needs, too.
_CPU_FILES = {"vllm": "cpu", "lmcache": "cuda"}


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
