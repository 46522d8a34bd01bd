"""The qualification accepts a good stack, and rejects a broken one by the right check.

One engine runs while servers take turns; the tests that need a server follow one
another. The last one kills the engine's rank.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qualify import checks, external
from qualify.bench import Bench, State, restoring, running_bench
from qualify.evidence import Evidence, Machine, Subject
from qualify.experiments.names import SWEEP, TIME
from qualify.observation import Observation
from qualify.observe import observe
from qualify.profiles import SMOKE
from qualify.recorder import Recorder
from tests.integration import shm
from tests.integration.models import ONE_GROUP
from tests.integration.stack import Stack
from tests.integration.waiting import wait_until

WINDOW, CHUNKS = 8, 24  # Three windows.
L1_CHUNKS = CHUNKS + WINDOW
GOOD, CORRUPTED = State(CHUNKS, seed=1), State(CHUNKS, seed=2)
DEATH_SECONDS = 60.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with running_bench(ONE_GROUP, CHUNKS, tmp_path_factory.mktemp("qualify")) as bench:
        bench.store([CORRUPTED, GOOD])
        bench.release_seconds = 2.0
        yield bench


def whole_plan(bench: Bench) -> Stack:
    """The server that has stored the states: it ignores W."""
    return bench.serve(l1_chunks=CHUNKS + 1)


def windowed(bench: Bench) -> Stack:
    return bench.serve(L1_CHUNKS, WINDOW)


def rejected_by(seen: Observation) -> set[str]:
    return {each.check for each in checks.rejections(seen)}


def test_a_tier_that_was_not_emptied_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = whole_plan(bench)
    monkeypatch.setattr(stack.server, "clear_l1", lambda: None)  # GOOD still lies in L1.

    found = rejected_by(bench.restore(stack, GOOD))

    assert checks.TIER in found
    assert checks.OUTPUT not in found


def test_windows_that_are_not_used_are_noticed(bench: Bench) -> None:
    stack = whole_plan(bench)

    seen = bench.restore(stack, GOOD, bench.through_windows(GOOD, WINDOW))

    assert rejected_by(seen) == {checks.BOUND}


def test_a_whole_plan_that_does_not_fit_is_noticed(bench: Bench) -> None:
    stack = bench.serve(l1_chunks=WINDOW)

    seen = bench.restore(stack, GOOD, bench.through_windows(GOOD, WINDOW))

    assert checks.CACHED_TOKENS in rejected_by(seen)
    assert seen.reused_tokens == 0


def test_a_good_restore_is_accepted(bench: Bench) -> None:
    stack = windowed(bench)

    assert checks.rejections(bench.restore(stack, GOOD)) == ()


def test_a_damaged_object_of_the_right_size_is_noticed(bench: Bench) -> None:
    damaged, other, *_ = bench.stored[CORRUPTED].files
    shutil.copyfile(other, damaged)

    assert rejected_by(bench.restore(windowed(bench), CORRUPTED)) == {checks.OUTPUT}


def test_a_given_stack_is_qualified_as_far_as_possible(bench: Bench, tmp_path: Path) -> None:
    stack = windowed(bench)
    evidence = Evidence(
        "smoke", "", Subject({}, {}, "", "", False), Machine("two CPU cores", "", "", "", 0)
    )
    recorder = Recorder(evidence, tmp_path / "evidence.json", print)

    external.run(recorder, SMOKE, external.Given(stack.engine.url, stack.server.url, 1, "first"))

    assert evidence.rejected == []
    assert [row.setup["chunks"] for row in evidence.of(SWEEP)] == [8, 16, 16]
    assert len(evidence.of(TIME)) == 1
    assert all(each.reason for each in evidence.not_run)


def test_a_dead_rank_is_noticed(bench: Bench) -> None:
    stack = windowed(bench)
    parts = bench.parts(stack)

    def die_first() -> str:
        for pid in stack.engine.process.pids():
            if shm.used_by([pid], ("lmcache_kv_",)):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not stack.engine.ready(), "the engine notices", DEATH_SECONDS)
        return parts.canary()

    seen = observe(
        replace(parts, canary=die_first),
        restoring(stack.engine, bench.stored[GOOD]),
        bench.in_full(stack, GOOD),
    )

    assert rejected_by(seen) == {checks.HEALTH}
