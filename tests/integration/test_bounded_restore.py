"""States of any size come back through an L1 that holds one window.

One engine runs while servers take turns, all over the same L2: one that loads
whole plans stores the states and is the baseline, one whose L1 is a single window
restores them, and one whose L2 takes orders damages them.

The size of L1 is one proof of the bound: bytes that are not there cannot be used.
The peak that the server counts is the other.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.integration import damage
from tests.integration.engine import Completion, Engine, EngineConfig
from tests.integration.environment import plugin_environment
from tests.integration.fixtures import ModelMaker
from tests.integration.models import ONE_GROUP, THREE_GROUPS, ModelShape
from tests.integration.process import ProcessFailedError
from tests.integration.server import ServerConfig
from tests.integration.stack import (
    Restore,
    ServerSwitch,
    Stack,
    random_prompt,
    running_server,
)

CHUNK_TOKENS = 32  # One block of vLLM's: "one block short" is one chunk short.
WINDOW_CHUNKS = 8
OTHER_WINDOWS = (2, 4, 16)
KILLED_WINDOW = 32  # An eighth of the state that is being restored.
SUFFIX_TOKENS = 8  # Too few for a chunk, output included: computed, never stored.

# Sizes in chunks: 1, 2, 4, 8, 16 and 32 windows, and one chunk more than that.
LADDER = (8, 16, 32, 64, 128, 256, 257)
FITTING, TOO_LARGE = 256, 257  # For a whole plan in the L1 of the baseline.

DAMAGED_CHUNK = 20  # In the third of four windows.
DAMAGED_CHUNKS = 32

ENGINE_ARGUMENTS = ("--block-size", str(CHUNK_TOKENS))
# Short, so that vLLM soon notices when servers change places.
ENGINE_SETTINGS = {"lmcache.mp.heartbeat_interval": 3.0}


@dataclass(frozen=True)
class State:
    """A prompt, and how long the part of it is that L2 holds."""

    seed: int
    chunks: int

    @property
    def tokens(self) -> int:
        return self.chunks * CHUNK_TOKENS

    @property
    def prompt(self) -> list[int]:
        # Prompts of one seed are beginnings of one another.
        return random_prompt(self.tokens + SUFFIX_TOKENS, self.seed)


@dataclass(frozen=True)
class Stored:
    """A state in L2, what the model said when it was new, and one chunk's objects."""

    state: State
    completion: Completion
    damageable: tuple[Path, ...] = ()


@dataclass
class Bench:
    """An engine, the servers that take turns, and what is stored in their L2."""

    shape: ModelShape
    objects_per_chunk: int
    config: ServerConfig
    switch: ServerSwitch
    ladder: dict[int, Stored] = field(default_factory=dict)
    victims: dict[str, Stored] = field(default_factory=dict)

    @property
    def window_bytes(self) -> int:
        return self.bytes_of(WINDOW_CHUNKS)

    def bytes_of(self, chunks: int) -> int:
        return chunks * CHUNK_TOKENS * self.shape.token_kv_bytes

    def whole_plan(self) -> Stack:
        return self.switch.serve(replace(self.config, l1_bytes=self.bytes_of(FITTING)))

    def windowed(self, window_chunks: int = WINDOW_CHUNKS) -> Stack:
        return self.switch.serve(self._one_window(window_chunks))

    def rewriting(self) -> Stack:
        """A server with windows, and room to store a victim again."""
        return self.switch.serve(
            replace(self._one_window(), l1_bytes=self.bytes_of(DAMAGED_CHUNKS + WINDOW_CHUNKS))
        )

    def damaging(self, window_chunks: int = WINDOW_CHUNKS) -> Stack:
        return self.switch.serve(
            replace(
                self._one_window(window_chunks),
                adapter=damage.adapter(self.config.l2_folder),
                environment=plugin_environment(),
            )
        )

    def _one_window(self, window_chunks: int = WINDOW_CHUNKS) -> ServerConfig:
        return replace(
            self.config, l1_bytes=self.bytes_of(window_chunks), window_chunks=window_chunks
        )

    def store_ladder(self, sizes: tuple[int, ...]) -> None:
        """Store states that are beginnings of one another, the smallest first."""
        stack = self.whole_plan()
        stored = 0
        for chunks in sizes:
            # The next state is computed on top of this one, which vLLM still has.
            stack.server.clear_l1()
            state = State(seed=1, chunks=chunks)
            new = stack.store(state.prompt, (chunks - stored) * self.objects_per_chunk)
            self.ladder[chunks] = Stored(state, new.completion)
            stored = chunks

    def store_victim(self, name: str) -> None:
        """Store a state in such steps that the objects of one chunk are known."""
        stack = self.whole_plan()
        seed = 100 + 10 * len(self.victims)
        stack.server.clear_l1()
        before = State(seed, DAMAGED_CHUNK)
        stack.store(before.prompt, before.chunks * self.objects_per_chunk)
        target = State(seed, DAMAGED_CHUNK + 1)
        files = stack.store(target.prompt, self.objects_per_chunk).files
        whole = State(seed, DAMAGED_CHUNKS)
        missing = whole.chunks - target.chunks
        completion = stack.store(whole.prompt, missing * self.objects_per_chunk).completion
        paths = tuple(self.config.l2_folder / file for file in sorted(files))
        self.victims[name] = Stored(whole, completion, paths)


def bench_of(shape: ModelShape, objects_per_chunk: int, model: ModelMaker, folder: Path) -> Bench:
    engine = EngineConfig(
        model(shape),
        max_tokens=(max(LADDER) + 1) * CHUNK_TOKENS,
        kv_cache_bytes=(max(LADDER) + 32) * CHUNK_TOKENS * shape.token_kv_bytes,
        arguments=ENGINE_ARGUMENTS,
        connector_settings=ENGINE_SETTINGS,
    )
    config = ServerConfig(l2_folder=folder / "l2", chunk_tokens=CHUNK_TOKENS)
    return Bench(shape, objects_per_chunk, config, ServerSwitch(engine, folder))


@pytest.fixture(scope="module")
def one_group(model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = bench_of(ONE_GROUP, 1, model, tmp_path_factory.mktemp("one-group"))
    try:
        bench.store_ladder(LADDER)
        for name in ("removed", "truncated", damage.LOSE, damage.SHORTEN):
            bench.store_victim(name)
        yield bench
    finally:
        bench.switch.stop()


@pytest.fixture(scope="module")
def three_groups(model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = bench_of(THREE_GROUPS, 2, model, tmp_path_factory.mktemp("three-groups"))
    try:
        bench.store_ladder(LADDER[:3])
        for name in ("first", "second"):
            bench.store_victim(name)
        yield bench
    finally:
        bench.switch.stop()


def assert_all_reused(restore: Restore, stored: Stored) -> None:
    assert restore.l1_before.used_bytes == 0
    assert restore.external_hits == stored.state.tokens
    assert restore.completion.cached_tokens == stored.state.tokens
    assert restore.completion.tokens == stored.completion.tokens


def assert_recomputed(restore: Restore, stored: Stored) -> None:
    # The hit was promised, so that it is the load that failed.
    assert restore.external_hits == stored.state.tokens
    assert restore.completion.cached_tokens == 0
    assert restore.completion.tokens == stored.completion.tokens


def assert_peak(stack: Stack, expected_bytes: int) -> None:
    status = stack.server.storage_status()["restore"]
    assert status["peak_staging_bytes"] == expected_bytes
    assert status["staging_bytes"] == 0


def test_without_windows_a_state_needs_an_l1_of_its_size(one_group: Bench) -> None:
    stack = one_group.whole_plan()
    fitting, too_large = one_group.ladder[FITTING], one_group.ladder[TOO_LARGE]

    assert stack.server.l1_capacity_bytes() == one_group.bytes_of(FITTING)
    assert_all_reused(stack.restore(fitting.state.prompt), fitting)

    nothing = stack.restore(too_large.state.prompt)
    assert nothing.external_hits == 0
    assert nothing.completion.cached_tokens == 0
    assert nothing.completion.tokens == too_large.completion.tokens


@pytest.mark.parametrize("chunks", LADDER)
def test_a_state_of_any_size_fits_through_an_l1_of_one_window(
    one_group: Bench, chunks: int
) -> None:
    stack = one_group.windowed()
    stored = one_group.ladder[chunks]

    restore = stack.restore(stored.state.prompt)

    assert stack.server.l1_capacity_bytes() == one_group.window_bytes
    assert_all_reused(restore, stored)
    assert restore.objects_loaded == chunks
    assert_peak(stack, one_group.window_bytes)


@pytest.mark.parametrize("window_chunks", OTHER_WINDOWS)
def test_the_peak_is_proportional_to_the_window(one_group: Bench, window_chunks: int) -> None:
    stack = one_group.windowed(window_chunks)
    stored = one_group.ladder[DAMAGED_CHUNKS]

    restore = stack.restore(stored.state.prompt)

    assert_all_reused(restore, stored)
    assert_peak(stack, one_group.bytes_of(window_chunks))


def test_the_server_says_how_large_a_window_is(one_group: Bench) -> None:
    log = one_group.windowed().server.process.log_text()

    assert f"{WINDOW_CHUNKS} chunks, {one_group.window_bytes} bytes of L1 per rank" in log


def test_a_removed_file_shortens_the_hit(one_group: Bench) -> None:
    stack, victim = one_group.windowed(), one_group.victims["removed"]
    victim.damageable[0].unlink()

    restore = stack.restore(victim.state.prompt)

    assert restore.completion.cached_tokens == DAMAGED_CHUNK * CHUNK_TOKENS
    assert restore.completion.tokens == victim.completion.tokens


def test_a_truncated_file_is_not_used(one_group: Bench) -> None:
    stack, victim = one_group.rewriting(), one_group.victims["truncated"]
    damage.shorten(victim.damageable[0])

    restore = stack.restore(victim.state.prompt)

    assert restore.external_hits == DAMAGED_CHUNK * CHUNK_TOKENS
    assert restore.completion.cached_tokens == DAMAGED_CHUNK * CHUNK_TOKENS
    assert restore.completion.tokens == victim.completion.tokens

    # What was recomputed has been stored, in place of the file too.
    stack.server.wait_quiet()
    assert_all_reused(stack.restore(victim.state.prompt), victim)


@pytest.mark.parametrize("order", [damage.LOSE, damage.SHORTEN])
def test_an_object_damaged_after_the_probe_costs_a_recompute(one_group: Bench, order: str) -> None:
    stack, victim = one_group.damaging(), one_group.victims[order]
    damage.order(victim.damageable[0], order)

    restore = stack.restore(victim.state.prompt)

    assert_recomputed(restore, victim)
    assert_next_restore_succeeds(stack, one_group)
    # The next request for it does not pay again.
    again = stack.restore(victim.state.prompt)
    assert again.completion.cached_tokens == DAMAGED_CHUNK * CHUNK_TOKENS
    assert again.completion.tokens == victim.completion.tokens


def test_a_server_killed_in_a_window_of_a_large_state_costs_the_restore(one_group: Bench) -> None:
    stack, stored = one_group.damaging(KILLED_WINDOW), one_group.ladder[FITTING]
    stack.forget()
    hits = stack.engine.external_hits()

    with (
        ThreadPoolExecutor(1) as pool,
        damage.held_load(one_group.config.l2_folder, number=2) as wait_held,
    ):
        answer = pool.submit(stack.engine.complete, stored.state.prompt)
        wait_held()
        peak = stack.server.storage_status()["restore"]["peak_staging_bytes"]
        one_group.switch.crash()
        completion = answer.result()

    assert peak == stack.server.config.l1_bytes == one_group.bytes_of(KILLED_WINDOW)
    assert stack.engine.external_hits() - hits == stored.state.tokens
    assert completion.cached_tokens == 0
    assert completion.tokens == stored.completion.tokens
    one_group.switch.revive()
    assert_next_restore_succeeds(stack, one_group)


@pytest.mark.parametrize("chunks", LADDER[:3])
def test_sliding_groups_share_the_window(three_groups: Bench, chunks: int) -> None:
    stack = three_groups.damaging()
    stored = three_groups.ladder[chunks]

    restore = stack.restore(stored.state.prompt)

    assert stack.server.l1_capacity_bytes() == three_groups.window_bytes
    assert_all_reused(restore, stored)
    assert_peak(stack, three_groups.window_bytes)


@pytest.mark.parametrize(("name", "group"), [("first", 0), ("second", 1)])
def test_an_object_of_one_group_lost_after_the_probe_costs_a_recompute(
    three_groups: Bench, name: str, group: int
) -> None:
    stack, victim = three_groups.damaging(), three_groups.victims[name]
    damage.order(victim.damageable[group], damage.LOSE)

    restore = stack.restore(victim.state.prompt)

    assert_recomputed(restore, victim)
    assert_next_restore_succeeds(stack, three_groups)


def assert_next_restore_succeeds(stack: Stack, bench: Bench) -> None:
    # It begins by waiting until no byte and no lock is left in L1.
    stored = bench.ladder[DAMAGED_CHUNKS]
    assert_all_reused(stack.restore(stored.state.prompt), stored)


def test_vllm_ends_at_once_and_says_why_a_window_does_not_fit(
    model: ModelMaker, tmp_path: Path
) -> None:
    window_bytes = WINDOW_CHUNKS * CHUNK_TOKENS * ONE_GROUP.token_kv_bytes
    config = ServerConfig(
        l2_folder=tmp_path / "l2",
        l1_bytes=window_bytes // 2,
        chunk_tokens=CHUNK_TOKENS,
        window_chunks=WINDOW_CHUNKS,
    )
    with running_server(config, tmp_path) as server:
        port = server.ports.messages
        engine = Engine(EngineConfig(model(ONE_GROUP), port, arguments=ENGINE_ARGUMENTS), tmp_path)
        try:
            with pytest.raises(ProcessFailedError):
                engine.start()
        finally:
            engine.stop()
        server.process.check_alive()

    log = engine.process.log_text()
    assert f"needs {window_bytes} bytes of L1" in log
    assert f"the largest window that fits is {WINDOW_CHUNKS // 2} chunks" in log
    assert "did not respond" not in log
