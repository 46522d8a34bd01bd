"""What every schedule must keep: the shared check of the contract's invariants."""

import torch

from tests.faults.restore_run import Prompt, Restored, RestoreRun
from tests.faults.restore_server import (
    BLOCKS_PER_CHUNK,
    CHUNK,
    CHUNKS,
    MOST_RESTORES,
    OBJECT_BYTES,
    SECONDS,
    source_blocks,
    target_blocks,
)
from tests.integration.waiting import wait_until


def check_promises(run: RestoreRun) -> None:
    """Check a schedule that has ended: all or nothing, blame, liveness, no leaks."""
    for restore in run.restores:
        check_restore(run, restore)
    check_other_blocks(run)
    assert not run.l2.violations, run.l2.violations
    for tokens in run.half_written:
        assert not any(key in run.l2.objects for key in run.server.keys(tokens)[0])
    for request_id in run.request_ids if not run.stopping else []:
        assert run.server.context.session_manager.get(request_id) is None, request_id
    if run.stopping:
        check_stop(run)
    else:
        check_nothing_is_left(run)
        check_stores(run)


def check_restore(run: RestoreRun, restore: Restored) -> None:
    """A restore that succeeded wrote all, one that failed nothing it must not."""
    name = restore.request_id
    assert restore.succeeded is not None, f"{name} did not end"
    assert restore.succeeded or run.harmed, f"{name} failed although nothing went wrong"
    worker = run.workers.index(restore.worker)
    sources = restore.worker.read(source_blocks(restore.prompt.content)[: len(restore.blocks)])
    for group, window in enumerate(run.server.setup.windows):
        now = restore.worker.kv[group][:, restore.blocks]
        before = run.before[worker][group][:, restore.blocks]
        first = max(restore.skip_blocks, first_needed(window, len(restore.blocks)))
        assert torch.equal(now, restore.reported[group]), f"{name} was written after its end"
        assert torch.equal(now[:, :first], before[:, :first]), f"{name} wrote blocks of others"
        if restore.succeeded:
            assert torch.equal(now[:, first:], sources[group][:, first:]), f"{name} lacks blocks"


def first_needed(window: int, blocks: int) -> int:
    """Return the first block of a hit that a group of this attention window needs."""
    return 0 if window < 0 else max(0, blocks - -(-window // CHUNK) * BLOCKS_PER_CHUNK)


def check_other_blocks(run: RestoreRun) -> None:
    """Blocks that no restore was given hold what they held."""
    for worker, before in zip(run.workers, run.before, strict=True):
        given = {b for r in run.restores if r.worker is worker for b in r.blocks}
        first, last = source_blocks(0)[0] - 1, target_blocks(MOST_RESTORES - 1)[-1]
        others = [block for block in range(first, last + 1) if block not in given]
        for now, then in zip(worker.kv, before, strict=True):
            assert torch.equal(now[:, others], then[:, others])


def check_nothing_is_left(run: RestoreRun) -> None:
    """Bytes, locks, tasks and results are back to where they were."""
    server = run.server

    def is_settled() -> bool:
        server.storage.clear()
        return not server.left_over()

    wait_until(is_settled, "nothing is left", SECONDS, lambda: str(server.left_over()))


def check_stop(run: RestoreRun) -> None:
    """At the end of a stop only that is kept which L2 may still read or write."""
    at_stop = run.at_stop
    assert at_stop is not None
    left = dict(at_stop.left)
    begun = [objects for stores in run.begun.values() for objects in stores]
    reserved = len(run.reserved) + sum(begun)
    assert left.pop("read locks", 0) <= at_stop.storing, at_stop
    loading = left.pop("quarantined bytes", 0) // OBJECT_BYTES
    assert at_stop.loading <= loading <= at_stop.loading_before, at_stop
    assert left.pop("staged objects", 0) == loading + reserved, at_stop
    assert left.pop("bytes charged to restores", 0) == loading * OBJECT_BYTES, at_stop
    assert left.pop("L2 locks", 0) <= loading, at_stop
    assert left.pop("transfers", 0) == len(begun), at_stop
    for name in ("L1 bytes", "write locks", "temporary objects", "stores"):
        left.pop(name, 0)  # Resident objects, and what has been counted above.
    if loading or at_stop.looking_up:
        left.pop("prefetches", 0)
        left.pop("abandoned prefetches", 0)
    assert not left, at_stop


def check_stores(run: RestoreRun) -> None:
    """What was stored meanwhile is whole, as far as it was not evicted before L2 took it."""
    for tokens, content, rank in run.stored:
        stored = run.server.contents[rank][content]
        for keys, whole in zip(run.server.keys(tokens, rank), stored, strict=True):
            for key, expected in zip(keys, whole, strict=False):
                assert torch.equal(run.l2.objects.get(key, expected), expected), key


def check_next_requests(run: RestoreRun) -> None:
    """Later requests reuse what there is, and a bad object costs one of them at most."""
    for prompt in run.prompts:
        promised = CHUNKS + 1
        while True:
            request_id, chunks = run.find(prompt)
            assert chunks < promised, f"{request_id} is promised what did not load before"
            promised = chunks
            if chunks == 0 or restores(run, request_id, prompt, chunks):
                break
        run.server.lookup.end_session(request_id)


def restores(run: RestoreRun, request_id: str, prompt: Prompt, chunks: int) -> bool:
    """Restore a hit without further faults on each rank; tell whether all succeeded."""
    server = run.server
    blocks = target_blocks(0)[: chunks * BLOCKS_PER_CHUNK]
    tokens = prompt.tokens[: chunks * CHUNK]
    succeeded = True
    for worker in server.workers[: server.setup.ranks]:
        restored = worker.retrieve(request_id, tokens, blocks, 0).result(SECONDS)[1]
        succeeded = succeeded and restored
        sources = worker.read(source_blocks(prompt.content)[: len(blocks)])
        groups = zip(server.setup.windows, worker.read(blocks), sources, strict=True)
        for window, now, source in groups:
            first = first_needed(window, len(blocks))
            assert not restored or torch.equal(now[:, first:], source[:, first:]), request_id
    server.lookup.end_session(request_id)
    return succeeded
