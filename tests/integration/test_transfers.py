"""The other ways in which KV moves, through an L1 that holds one window of one rank.

Engine-driven workers copy by themselves, from messages or from shared memory. Two
tensor-parallel ranks share the server and its L1, and agree on what they restore, in
every mode.

The states are stored through that L1, too: in steps that fit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration import damage
from tests.integration.engine import EngineConfig
from tests.integration.environment import plugin_environment
from tests.integration.fixtures import ModelMaker
from tests.integration.models import ONE_GROUP, SLIDING, THREE_GROUPS, ModelShape
from tests.integration.server import ServerConfig
from tests.integration.stack import Restore, ServerSwitch, Stack, Stored, random_prompt
from tests.integration.transfer import ENGINE_PICKLE, ENGINE_SHM, LMCACHE_DRIVEN, Transfer

CHUNK_TOKENS = 32
WINDOW_CHUNKS = 8
SUFFIX_TOKENS = 8  # Too few for a chunk, output included: computed, never stored.

# One window, and three of which the last is short or full.
SIZES = (8, 20, 24)
LARGEST = 24

# Of the middle size: chunks of its last window, which is short, of its second and of
# its first, and what happens to their objects. A hit then ends before the chunk.
DAMAGED_SIZE = 20
DAMAGE = {18: damage.SHORTEN, 12: damage.LOSE, 3: damage.SHORTEN}


@dataclass
class Bench:
    """An engine, its server of the moment, and the states in the server's L2."""

    shape: ModelShape
    config: ServerConfig
    switch: ServerSwitch
    ranks: int
    objects_per_chunk: int
    stored: dict[int, Stored] = field(default_factory=dict)

    @property
    def stack(self) -> Stack:
        return self.switch.serve(self.config)

    def store_all(self) -> None:
        """Store the states, in such steps that the objects of one chunk are known."""
        stops = (*SIZES, *DAMAGE, *(chunk + 1 for chunk in DAMAGE))
        done = 0
        while done < LARGEST:
            step = min(done + WINDOW_CHUNKS // self.ranks, *(s for s in stops if s > done))
            # What comes next is computed on top of this, which vLLM still has.
            self.stack.server.clear_l1()
            objects = (step - done) * self.objects_per_chunk
            self.stored[step] = self.stack.store(prompt(step), objects)
            done = step

    def objects_of(self, chunk: int, rank: int) -> list[Path]:
        """Return the objects of one rank and chunk."""
        # The name of a file tells the number of ranks and the rank in two bytes.
        part = f"@0x{self.ranks:02x}{rank:02x}"
        files = self.stored[chunk + 1].files
        return [self.config.l2_folder / file for file in files if part in file]

    def bytes_of(self, chunks: int) -> int:
        """Return the bytes that all ranks together need of a state."""
        sliding = min(chunks * CHUNK_TOKENS, self.shape.sliding_window or 0)
        tokens = (
            sliding if kind == SLIDING else chunks * CHUNK_TOKENS for kind in self.shape.layer_types
        )
        return sum(tokens) * self.shape.layer_kv_bytes

    def restore(self, chunks: int) -> Restore:
        return self.stack.restore(prompt(chunks))

    def restores(self) -> dict[str, Any]:
        """Return what the server has counted about restores."""
        counted: dict[str, Any] = self.stack.server.storage_status()["restore"]
        return counted

    @contextmanager
    def counts_a_restore(self, chunks: int) -> Iterator[None]:
        """Expect that a whole state is restored, once by each rank."""
        before = self.restores()
        yield
        after = self.restores()
        windows = -(-chunks // WINDOW_CHUNKS) * self.ranks
        assert after["windows"] - before["windows"] == windows
        assert after["bytes"] - before["bytes"] == self.bytes_of(chunks)
        assert after["outcomes"]["success"] - before["outcomes"]["success"] == self.ranks
        assert after["peak_staging_bytes"] == self.config.l1_bytes
        assert after["staging_bytes"] == 0
        # The metrics have counted the same since the server started.
        metrics = self.stack.server.settled_metrics()
        assert metrics.total("lmcache_mp_restore_windows") == after["windows"]
        assert metrics.total("lmcache_mp_restore_bytes") == after["bytes"]
        for outcome, restores in after["outcomes"].items():
            assert metrics.total("lmcache_mp_restores", outcome=outcome) == restores

    def assert_reused(self, restore: Restore, chunks: int, *, of: int) -> None:
        assert restore.l1_before.used_bytes == 0
        assert restore.external_hits == chunks * CHUNK_TOKENS
        assert restore.completion.cached_tokens == chunks * CHUNK_TOKENS
        assert restore.completion.tokens == self.stored[of].completion.tokens

    def assert_damage_costs_a_recompute(self, rank: int) -> None:
        """Damage objects of a rank after the probe, in one window after the other."""
        assert self.stack.server.ready()
        promised = DAMAGED_SIZE
        contents: dict[Path, bytes] = {}
        for chunk, what in DAMAGE.items():
            for path in self.objects_of(chunk, rank):
                contents[path] = path.read_bytes()
                damage.order(path, what)
            failed = self.failed_restores()

            # Each restore begins by waiting until no byte and no lock is left in L1.
            lost = self.restore(DAMAGED_SIZE)

            assert lost.external_hits == promised * CHUNK_TOKENS  # And not delivered.
            assert lost.completion.cached_tokens == 0
            assert lost.completion.tokens == self.stored[DAMAGED_SIZE].completion.tokens
            assert self.failed_restores() == failed + 1
            promised = chunk
        self.assert_reused(self.restore(DAMAGED_SIZE), promised, of=DAMAGED_SIZE)
        self.stack.forget()
        for path, content in contents.items():  # For the next server.
            path.write_bytes(content)

    def failed_restores(self) -> int:
        """Return how many restores have missed an object."""
        missing: int = self.restores()["outcomes"].get("missing", 0)
        return missing


def prompt(chunks: int) -> list[int]:
    """Return a prompt; all of them are beginnings of one another."""
    return random_prompt(chunks * CHUNK_TOKENS + SUFFIX_TOKENS, seed=1)


def bench_of(
    shape: ModelShape,
    objects_per_chunk: int,
    model: ModelMaker,
    folder: Path,
    *,
    transfer: Transfer = LMCACHE_DRIVEN,
    ranks: int = 1,
) -> Bench:
    l2_folder = folder / "l2"
    window_bytes = WINDOW_CHUNKS * CHUNK_TOKENS * shape.token_kv_bytes // ranks
    config = ServerConfig(
        l2_folder=l2_folder,
        adapter=damage.adapter(l2_folder),
        l1_bytes=window_bytes,
        chunk_tokens=CHUNK_TOKENS,
        transfer=transfer,
        window_chunks=WINDOW_CHUNKS,
        environment=plugin_environment(),
    )
    engine = EngineConfig(
        model(shape),
        transfer=transfer,
        ranks=ranks,
        max_tokens=(LARGEST + 1) * CHUNK_TOKENS,
        kv_cache_bytes=2 * LARGEST * CHUNK_TOKENS * shape.token_kv_bytes,
        arguments=("--block-size", str(CHUNK_TOKENS)),
        # Short, so that vLLM soon notices that servers change places. Two ranks and the
        # server share two cores.
        connector_settings={"lmcache.mp.heartbeat_interval": 3.0 if ranks == 1 else 10.0},
    )
    return Bench(shape, config, ServerSwitch(engine, folder), ranks, objects_per_chunk)


# -- The worker copies ------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2], ids=lambda ranks: f"{ranks}-rank")
def worker_copies(
    request: pytest.FixtureRequest, model: ModelMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    bench = bench_of(
        ONE_GROUP,
        request.param,
        model,
        tmp_path_factory.mktemp("worker-copies"),
        transfer=ENGINE_PICKLE,
        ranks=request.param,
    )
    try:
        bench.store_all()
        yield bench
    finally:
        bench.switch.stop()


@pytest.fixture(
    scope="module", params=[ENGINE_PICKLE, ENGINE_SHM], ids=lambda transfer: transfer.name
)
def engine_driven(request: pytest.FixtureRequest, worker_copies: Bench) -> Bench:
    """Return the bench with a server of either transport."""
    worker_copies.config = replace(worker_copies.config, transfer=request.param)
    return worker_copies


def test_the_worker_and_the_server_agree_on_the_transport(engine_driven: Bench) -> None:
    log = engine_driven.stack.server.process.log_text()
    transport = "shm" if engine_driven.config.transfer.shared_l1 else "pickle"

    assert f"Using {transport} non-GPU transfer strategy" in log
    assert f"{WINDOW_CHUNKS} chunks, {engine_driven.config.l1_bytes} bytes of L1 per rank" in log


@pytest.mark.parametrize("chunks", SIZES)
def test_the_worker_copies_a_state_of_any_size_in_windows(
    engine_driven: Bench, chunks: int
) -> None:
    with engine_driven.counts_a_restore(chunks):
        restore = engine_driven.restore(chunks)

    assert engine_driven.stack.server.l1_capacity_bytes() == engine_driven.config.l1_bytes
    engine_driven.assert_reused(restore, chunks, of=chunks)
    assert restore.objects_loaded == chunks * engine_driven.ranks


def test_damage_to_any_window_of_a_worker_costs_a_recompute(engine_driven: Bench) -> None:
    engine_driven.assert_damage_costs_a_recompute(rank=engine_driven.ranks - 1)


# -- The server copies, for two ranks ---------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[(ONE_GROUP, 1), (THREE_GROUPS, 2)],
    ids=[ONE_GROUP.name, THREE_GROUPS.name],
)
def two_ranks(
    request: pytest.FixtureRequest, model: ModelMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    shape, groups = request.param
    bench = bench_of(
        shape,
        groups * 2,
        model,
        tmp_path_factory.mktemp(f"two-ranks-{shape.name}"),
        ranks=2,
    )
    try:
        bench.store_all()
        yield bench
    finally:
        bench.switch.stop()


@pytest.mark.parametrize("chunks", SIZES)
def test_two_ranks_restore_through_one_window(two_ranks: Bench, chunks: int) -> None:
    with two_ranks.counts_a_restore(chunks):
        restore = two_ranks.restore(chunks)

    assert two_ranks.stack.server.l1_capacity_bytes() == two_ranks.config.l1_bytes
    two_ranks.assert_reused(restore, chunks, of=chunks)


def test_damage_to_any_window_of_one_rank_costs_both_a_recompute(two_ranks: Bench) -> None:
    two_ranks.assert_damage_costs_a_recompute(rank=1)
