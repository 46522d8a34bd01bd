"""The harness itself: what it says about failures, and that it leaves nothing."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration import shm
from tests.integration.environment import process_environment, python
from tests.integration.process import ProcessFailedError, ProcessGroup
from tests.integration.prometheus import parse_metrics
from tests.integration.waiting import WaitTimeoutError, wait_until

SECONDS = 60.0

PAGE = """\
# HELP hits_total Hits.
# TYPE hits_total counter
hits_total{tier="l1",model="a"} 3.0
hits_total{tier="l2",model="a"} 4.0
depth 2.0
"""

PARENT = """
import mmap, os, subprocess, sys
segment = os.open(f"/dev/shm/psm_{os.getpid()}", os.O_CREAT | os.O_RDWR)
os.ftruncate(segment, mmap.PAGESIZE)
mapped = mmap.mmap(segment, mmap.PAGESIZE)
child = "import signal; print('child runs', flush=True); signal.pause()"
subprocess.run([sys.executable, "-c", child])
"""


Start = Callable[[str], ProcessGroup]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that runs a Python program until the test ends."""
    with ExitStack() as running:

        def run(program: str) -> ProcessGroup:
            group = ProcessGroup(
                "program",
                [python(), "-c", program],
                process_environment({}),
                working_folder=tmp_path,
                log_folder=tmp_path,
            )
            running.callback(group.kill)
            group.start()
            return group

        yield run


def test_a_process_that_ends_is_reported_with_its_log(start: Start) -> None:
    group = start("raise SystemExit('no disk')")
    wait_until(lambda: not group.alive(), "the end of the program", SECONDS)

    with pytest.raises(ProcessFailedError, match=r"exit code: 1\n(?s:.*)no disk"):
        group.check_alive()


def test_killing_a_group_ends_the_children_too(start: Start) -> None:
    group = start(PARENT)
    wait_until(lambda: "child runs" in group.log_tail(), "the child", SECONDS)
    parent = min(group.pids())
    segments = shm.used_by(group.pids(), shm.ENGINE_KINDS)

    group.kill()

    assert group.pids() == []
    assert shm.remove(segments) == {f"psm_{parent}"}


def test_a_suspended_group_can_be_stopped(start: Start) -> None:
    group = start("import signal; print('runs', flush=True); signal.pause()")
    wait_until(lambda: "runs" in group.log_tail(), "the program", SECONDS)
    group.suspend()

    group.stop(SECONDS)

    assert group.exit_code() == -signal.SIGTERM


def test_a_condition_that_stays_false_is_named() -> None:
    with pytest.raises(WaitTimeoutError, match=r"not within 0 s: rain\nsun"):
        wait_until(lambda: False, "rain", 0, explain=lambda: "sun")


def test_metrics_are_summed_over_the_labels_not_asked_for() -> None:
    metrics = parse_metrics(PAGE)

    assert metrics.total("hits") == 7
    assert metrics.total("hits", tier="l2") == 4
    assert metrics.total("depth") == 2
    assert metrics.total("misses") == 0
