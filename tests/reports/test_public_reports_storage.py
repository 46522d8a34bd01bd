"""What users have reported of loads from L2, played against the real StorageManager.

`docs/reports.md` says which test plays which report.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import lmcache.v1.distributed.l2_adapters.fs_l2_adapter as fs_l2_adapter
import lmcache.v1.distributed.storage_controllers.prefetch_controller as prefetch_controller
import pytest
from lmcache.v1.distributed.api import PrefetchTaskSpec
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.mp_observability.errors import LMCacheTimeoutError

from tests.faults.faulty_l2 import Fault, FaultyL2
from tests.integration.waiting import wait_until
from tests.reports.storage import LAYOUT, OBJECT_BYTES, SECONDS, Storage, file_of, key, row

WINDOW = 4
OTHER = 1000  # Chunks of other prompts.

MakeStorage = Callable[..., Storage]


@pytest.fixture
def make_storage() -> Iterator[MakeStorage]:
    """Start storages that are stopped at the end."""
    started: list[Storage] = []

    def make(*arguments: Any) -> Storage:
        started.append(Storage(*arguments))
        return started[-1]

    yield make
    for storage in started:
        storage.close()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """Return a thread that restores while the test goes on."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def wait_loads(l2: FaultyL2, number: int) -> None:
    """Wait until L2 has so many loads to answer."""
    wait_until(lambda: len(l2.loads) == number, f"{number} loads", SECONDS)


# -- Space ------------------------------------------------------------------------------


def test_a_hit_of_six_times_l1_is_restored_as_promised(make_storage: MakeStorage) -> None:
    chunks = 6 * WINDOW
    storage = make_storage(WINDOW, WINDOW)
    storage.l2.passing = True
    storage.put_l2(key(chunk) for chunk in range(chunks))

    assert storage.probe(row(range(chunks))) == [chunks]
    assert storage.restore(chunks, WINDOW) == chunks
    assert storage.restore_status()["peak_staging_bytes"] == WINDOW * OBJECT_BYTES

    # The last object goes after it was promised: then nothing is restored.
    assert storage.probe(row(range(chunks))) == [chunks]
    storage.l2.delete([key(chunks - 1)])
    assert storage.restore(chunks, WINDOW) == 0
    storage.wait_empty()


def test_a_fourth_plan_waits_for_one_of_three(
    make_storage: MakeStorage, thread: ThreadPoolExecutor
) -> None:
    storage = make_storage(3 * WINDOW, WINDOW)
    storage.l2.passing = True
    plans = [row(range(first, first + WINDOW)) for first in range(0, 4 * WINDOW, WINDOW)]
    storage.put_l2(obj_key for plan in plans for obj_key in plan.keys)
    held = [storage.stage(plan) for plan in plans[:3]]
    assert all(held)

    fourth = thread.submit(storage.stage, plans[3])
    # From now on stores wait for it, too.
    new_keys = (key(chunk) for chunk in count(OTHER))
    wait_until(lambda: storage.manager._waiting_windows == 1, "it finds no room", SECONDS)
    assert storage.store([next(new_keys)]) == 0
    assert not fourth.done()

    assert held[1] is not None
    storage.release(held[1])
    restored = fourth.result(SECONDS)
    assert restored is not None
    for plan in (held[0], held[2], restored):
        assert plan is not None
        storage.release(plan)
    storage.wait_empty()


def test_a_store_has_all_of_l1_after_twenty_probes(make_storage: MakeStorage) -> None:
    storage = make_storage(WINDOW, WINDOW)
    storage.l2.passing = True
    prompts = [row(range(first, first + WINDOW)) for first in range(0, 20 * WINDOW, WINDOW)]
    storage.put_l2(obj_key for prompt in prompts for obj_key in prompt.keys)
    handles = [
        storage.manager.submit_prefetch_task(PrefetchTaskSpec([prompt], probe_only=True))
        for prompt in prompts
    ]

    assert storage.store([key(OTHER + number) for number in range(WINDOW)]) == WINDOW

    for handle in handles:
        assert storage.manager.wait_prefetch_status(handle, SECONDS)
        result = storage.manager.query_prefetch_status(handle)
        assert result is not None and result.hit_cells[0].popcount() == WINDOW
    wait_until(lambda: not storage.l1()["read_locked_count"], "the store is in L2", SECONDS)
    storage.wait_empty()


# -- Reading files ----------------------------------------------------------------------


class SlowReads:
    """Reads of files that end in rounds: as soon as so many of them are going on."""

    def __init__(self, read: Callable[..., int], at_once: int) -> None:
        """Stand before a function that reads."""
        self._read = read
        self._barrier = threading.Barrier(at_once, action=self._end_round)
        self._lock = threading.Lock()
        self._running = 0
        self.rounds = 0
        self.most_at_once = 0

    def __call__(self, *arguments: Any) -> int:
        """Read once enough others do."""
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            self._barrier.wait(SECONDS)
            return self._read(*arguments)
        finally:
            with self._lock:
                self._running -= 1

    def _end_round(self) -> None:
        self.rounds += 1


@pytest.mark.parametrize(("at_once", "rounds"), [(1, 8), (4, 2)])
def test_slow_files_are_read_so_many_at_once(
    make_storage: MakeStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    rounds: int,
) -> None:
    window = 8
    monkeypatch.setenv("LMCACHE_FS_LOAD_CONCURRENCY", str(at_once))
    storage = make_storage(2 * window, window, FSL2AdapterConfig(str(tmp_path)))
    store_files(storage, tmp_path, window)
    reads = SlowReads(fs_l2_adapter._readinto_full, at_once)
    monkeypatch.setattr(fs_l2_adapter, "_readinto_full", reads)

    result = storage.stage(row(range(window)))

    assert result is not None
    assert result.l2_hit_cells[0].get_indices_list() == list(range(window))
    assert (reads.most_at_once, reads.rounds) == (at_once, rounds)
    storage.release(result)


def test_a_file_that_is_truncated_after_the_probe_is_tried_once(
    make_storage: MakeStorage, tmp_path: Path
) -> None:
    chunks, bad = 3 * WINDOW, WINDOW + 1
    storage = make_storage(chunks, WINDOW, FSL2AdapterConfig(str(tmp_path)))
    store_files(storage, tmp_path, chunks)
    assert storage.probe(row(range(chunks))) == [chunks]
    path = file_of(tmp_path, bad)
    path.write_bytes(path.read_bytes()[:-1])

    assert storage.restore(chunks, WINDOW) == 0

    # The next request is promised what stands before it, and gets that.
    assert storage.probe(row(range(chunks))) == [bad]
    assert storage.restore(bad, WINDOW) == bad
    storage.wait_empty()


def store_files(storage: Storage, folder: Path, chunks: int) -> None:
    """Store a prompt of so many chunks as files, and drop what L1 has of it."""
    assert storage.store([key(chunk) for chunk in range(chunks)]) == chunks
    wait_until(lambda: len(list(folder.glob("*.data"))) == chunks, "files", SECONDS)
    storage.wait_empty()


# -- Loads that do not end, or end badly ------------------------------------------------


def test_a_load_that_stalls_keeps_its_buffers_until_it_reports(
    make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline passes, and the write TTL; then the server stops."""
    storage = make_storage(2 * WINDOW, WINDOW)
    storage.put_l2(key(chunk) for chunk in range(WINDOW))
    manager = storage.manager
    (l1,) = manager._l1_managers_by_id.values()
    monkeypatch.setattr(l1, "_write_ttl_seconds", 0)
    with pytest.raises(LMCacheTimeoutError):
        storage.stage(row(range(WINDOW)), seconds=0.2)
    wait_loads(storage.l2, 1)

    # A store's reservation has expired at once, and its buffer is free again.
    assert manager.reserve_write([key(OTHER)], LAYOUT)
    manager.delete_l1_keys([key(OTHER), *(key(chunk) for chunk in range(WINDOW))])
    manager.clear()
    assert storage.l1()["staging_bytes"] == WINDOW * OBJECT_BYTES
    assert len(manager.reserve_write([key(OTHER + n) for n in range(2 * WINDOW)], LAYOUT)) == 0

    # The stop does not wait for it; the scripted L2 writes until it is closed, and
    # notes it if the buffers are not the load's any more.
    monkeypatch.setattr(prefetch_controller, "PREFETCH_STOP_DRAIN_SECONDS", 0.02)
    staged_at_close: list[int] = []
    close = storage.l2.close

    def note_and_close() -> None:
        staged_at_close.append(storage.l1()["staging_bytes"])
        close()

    monkeypatch.setattr(storage.l2, "close", note_and_close)
    storage.close()
    assert staged_at_close == [WINDOW * OBJECT_BYTES]


def test_a_second_window_that_does_not_come_fails_at_its_deadline(
    make_storage: MakeStorage, thread: ThreadPoolExecutor
) -> None:
    storage = make_storage(3 * WINDOW, WINDOW)
    storage.put_l2(key(chunk) for chunk in range(2 * WINDOW))
    first = thread.submit(storage.stage, row(range(WINDOW)))
    wait_loads(storage.l2, 1)
    storage.l2.answer(storage.l2.loads[0])
    window = first.result(SECONDS)
    assert window is not None
    storage.release(window)

    with pytest.raises(LMCacheTimeoutError, match="not staged"):
        storage.stage(row(range(WINDOW, 2 * WINDOW)), seconds=0.2)

    # It comes late: nobody is told, and nothing of it stays.
    wait_loads(storage.l2, 1)
    assert storage.l1()["staging_bytes"] == WINDOW * OBJECT_BYTES
    storage.l2.answer(storage.l2.loads[0])
    wait_until(lambda: not storage.l1()["memory_used_bytes"], "it is given back", SECONDS)
    assert storage.manager.unsafe_read([key(WINDOW)])[0] == []
    storage.wait_empty()
    storage.l2.passing = True
    assert storage.restore(2 * WINDOW, WINDOW) == 2 * WINDOW


def test_gets_that_all_fail_after_the_first_window_restore_nothing(
    make_storage: MakeStorage, thread: ThreadPoolExecutor
) -> None:
    """Lookups still find everything, as with a store whose holder has died."""
    chunks = 3 * WINDOW
    storage = make_storage(chunks, WINDOW)
    storage.put_l2(key(chunk) for chunk in range(chunks))
    assert storage.probe(row(range(chunks))) == [chunks]
    restored = thread.submit(storage.restore, chunks, WINDOW)
    for fault in (Fault.NONE, Fault.OUTAGE):
        wait_loads(storage.l2, 1)
        storage.l2.answer(storage.l2.loads[0], fault)

    assert restored.result(SECONDS) == 0
    assert storage.l2.loads == []
    storage.wait_empty()


def test_ranks_restore_the_prefix_that_both_have(make_storage: MakeStorage) -> None:
    chunks, lost = 2 * WINDOW, WINDOW + 1
    storage = make_storage(2 * WINDOW, WINDOW)
    storage.l2.passing = True
    for rank in (0, 1):
        storage.put_l2(key(chunk, rank) for chunk in range(chunks))
    storage.l2.delete([key(chunk, rank=1) for chunk in range(lost, chunks)])

    assert storage.probe(row(range(chunks), 0), row(range(chunks), 1)) == [lost, lost]

    for first, last in ((0, WINDOW), (WINDOW, lost)):
        window = storage.stage(row(range(first, last), 0), row(range(first, last), 1))
        assert window is not None
        storage.release(window)
    storage.wait_empty()
