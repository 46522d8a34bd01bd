"""LMCache's windowed restore under random schedules of faults.

The storage manager, prefetch controller, lookup and transfer modules are the
real ones; L2 ends its loads when the schedule says so, and as it says. A
schedule crosses that with aborts, workers that leave, deadlines, a full L1, other
restores, stores, and the server's stop. The time that deadlines are counted in
is the schedule's own: nothing waits for it. Every run takes the same schedules;
`BOUNDED_RESTORE_SCHEDULES=N` draws N new ones.
"""

import logging
import os
import threading
from collections.abc import Iterator

import lmcache.v1.distributed.storage_controllers.prefetch_controller as prefetch_controller
import lmcache.v1.distributed.storage_manager as storage_manager
import lmcache.v1.multiprocess.modules.windowed_retrieve as windowed_retrieve
import lmcache.v1.multiprocess.transfer_context.worker_transfer as worker_transfer
import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.faults.found_schedules import FOUND
from tests.faults.restore_promises import check_next_requests, check_promises
from tests.faults.restore_run import CopyGate, RestoreRun
from tests.faults.restore_server import SECONDS, Clock, Contents, RestoreServer, Setup
from tests.faults.restore_steps import Schedule, schedules

# What copies a window into a worker's blocks: the server, or the worker itself.
COPIES = (
    (windowed_retrieve, "transfer_kv_per_object_group"),
    (worker_transfer, "scatter_cpu_to_paged_kv"),
)
EXPLORED = os.environ.get("BOUNDED_RESTORE_SCHEDULES")
SCHEDULES = int(EXPLORED or "2000")


class Servers:
    """Serves schedule after schedule from one server a setup, until one stops or breaks it."""

    def __init__(self, clock: Clock, gate: CopyGate) -> None:
        """Start no server yet."""
        self._clock = clock
        self._gate = gate
        self._servers: dict[Setup, RestoreServer] = {}
        self._contents: dict[Setup, Contents] = {}

    def run(self, schedule: Schedule) -> None:
        """Carry out a schedule and check what it leaves behind."""
        setup = schedule.setup
        self._stop_others(setup)
        server = self._servers.pop(setup, None) or RestoreServer(
            self._clock, self._contents.get(setup), setup
        )
        self._contents[setup] = server.contents
        run = RestoreRun(server, self._gate)
        try:
            for step in schedule.steps:
                run.do(step)
            if schedule.stop:
                run.stop(schedule.reports)
            else:
                run.finish()
            check_promises(run)
        except BaseException:
            self._abandon(run)
            raise
        if not schedule.stop:
            check_next_requests(run)
            server.l2.objects.clear()
            server.l2.damaged.clear()
            self._servers[setup] = server

    def close(self) -> None:
        """Stop the last servers."""
        for server in self._servers.values():
            server.close()

    def _stop_others(self, setup: Setup) -> None:
        """Stop servers that would take the notes about this one's copies, which go by process."""
        for other in list(self._servers):
            if other != setup and other.transfer == setup.transfer == "server":
                self._servers.pop(other).close()

    def _abandon(self, run: RestoreRun) -> None:
        """Stop a server that has broken a promise: others of the process would suffer."""
        self._gate.open()
        run.l2.pass_everything()
        if not run.stopping:
            # A thread of its own: what is broken may not end.
            stopper = threading.Thread(target=run.server.close, daemon=True)
            stopper.start()
            stopper.join(SECONDS)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Return servers whose deadlines are counted in the schedule's time."""
    clock = Clock()
    gate = CopyGate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowed_retrieve, "time", clock)
        patch.setattr(storage_manager, "time", clock)
        patch.setattr(storage_manager, "_WINDOW_RETRY_SECONDS", 0.002)
        patch.setattr(prefetch_controller, "PREFETCH_STOP_DRAIN_SECONDS", 0.02)
        for module, copy in COPIES:
            patch.setattr(module, copy, gate.before(getattr(module, copy)))
        logging.disable(logging.CRITICAL)
        servers = Servers(clock, gate)
        yield servers
        servers.close()
        logging.disable(logging.NOTSET)


def test_restores_keep_their_promises(servers: Servers) -> None:
    """Under every schedule: all or nothing, an end, and nothing left behind."""

    @settings(
        max_examples=SCHEDULES,
        derandomize=not EXPLORED,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(schedules())
    def keep_their_promises(schedule: Schedule) -> None:
        servers.run(schedule)

    for found in FOUND:
        keep_their_promises = example(found)(keep_their_promises)
    keep_their_promises()
