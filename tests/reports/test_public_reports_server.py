"""What users have reported of workers that leave, played against the real server.

`docs/reports.md` says which test plays which report.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.faults.restore_server import (
    CHUNKS,
    SECONDS,
    Clock,
    RestoreServer,
    ipc_key,
    target_blocks,
)
from tests.integration.waiting import wait_until


@pytest.fixture
def server() -> Iterator[RestoreServer]:
    """Start a server with two workers."""
    server = RestoreServer(Clock())
    server.l2.passing = True
    yield server
    server.close()


def look_up(server: RestoreServer, request_id: str, tokens: list[int]) -> int:
    """Return the hit of a request in chunks."""
    server.lookup.lookup(ipc_key(request_id, tokens).no_worker_id_version(), 1)
    chunks: int | None = None
    while chunks is None:
        chunks = server.lookup.wait_prefetch_status(request_id, SECONDS)
    return chunks


@pytest.mark.parametrize("leave", ["unregistered", "reaped"])
def test_a_retrieve_of_a_worker_that_is_gone_fails_at_once(
    server: RestoreServer, leave: str
) -> None:
    tokens = server.put(content=0)
    gone, other = server.workers
    assert look_up(server, "gone", tokens) == CHUNKS
    before = [kv.clone() for kv in gone.kv]
    if leave == "unregistered":
        gone.leave()
    else:
        server.transfer.touch_instance(other.instance_id)
        reaped = server.transfer.reap_stale_instances(3600.0, registration_grace_s=-1.0)
        assert reaped == [gone.instance_id]

    answer = gone.retrieve("gone", tokens, target_blocks(0), skip=0)

    assert answer.done()
    assert not answer.result()[1]
    server.lookup.end_session("gone")
    wait_until(lambda: not server.left_over(), "no lock is left", SECONDS)
    assert all(map(torch.equal, gone.kv, before))

    # Others restore the same prompt.
    assert look_up(server, "other", tokens) == CHUNKS
    assert other.retrieve("other", tokens, target_blocks(0), skip=0).result(SECONDS)[1]
    server.lookup.end_session("other")
