"""What goes wrong in the middle of a restore costs no more than that restore.

Each row breaks something while a window is being fetched, under both of vLLM's
load failure policies and with one and three KV cache groups; one row breaks it for
one of two tensor-parallel ranks. Whatever breaks, the
request is answered right or ends with an error, nothing of it stays in L1, and the
next restore succeeds. The rows are printed as a table at the end.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration import damage
from tests.integration.engine import Completion, EngineConfig
from tests.integration.environment import plugin_environment
from tests.integration.fixtures import SUMMARY, ModelMaker
from tests.integration.models import ONE_GROUP, THREE_GROUPS, ModelShape
from tests.integration.server import ServerConfig
from tests.integration.stack import ServerSwitch, Stack, random_prompt
from tests.integration.waiting import wait_until
from tests.integration.webclient import HttpError

CHUNK_TOKENS = 32
WINDOW_CHUNKS = 8
CHUNKS = 24  # Three windows; the second one is held.
L1_CHUNKS = 64  # Stores need room for a whole prompt.
HELD_LOAD = 2
SUFFIX_TOKENS = 8
CONTROL_SEED = 1

# Of a window and of a restore. All rows are over long before.
DEADLINE_SECONDS = 15
STALL_SECONDS = 3.0
# The server lets the restore go at its deadline, or the engine a minute later.
QUARANTINE_SECONDS = 2 * DEADLINE_SECONDS + 60

RECOMPUTE, FAIL = "recompute", "fail"
ENDED_WITH_ERROR = "error"

LAYOUTS = {ONE_GROUP: 1, THREE_GROUPS: 2}  # Objects of a chunk.


@dataclass
class Outcome:
    """What came of the request whose restore was broken."""

    right_tokens: bool
    cached_tokens: int
    finish_reason: str


@dataclass
class Bench:
    """A stack whose L2 can be broken, and the rows that it has been through."""

    shape: ModelShape
    policy: str
    config: ServerConfig
    switch: ServerSwitch
    ranks: int = 1
    rows: dict[str, Outcome] = field(default_factory=dict)
    stored: dict[int, Completion] = field(default_factory=dict)

    @property
    def stack(self) -> Stack:
        return self.switch.serve(self.config)

    @property
    def l2(self) -> Path:
        return self.config.l2_folder

    @staticmethod
    def prompt(seed: int) -> list[int]:
        return random_prompt(CHUNKS * CHUNK_TOKENS + SUFFIX_TOKENS, seed)

    def store(self, seed: int) -> list[int]:
        """Store a state and return its prompt; what L1 and vLLM hold of it is dropped."""
        prompt = self.prompt(seed)
        stack = self.stack
        stack.forget()
        objects = self.ranks * CHUNKS * LAYOUTS[self.shape]
        self.stored[seed] = stack.store(prompt, objects).completion
        stack.forget()
        return prompt

    def answer(self, prompt: list[int], seed: int) -> Outcome:
        """Run a prompt and compare the answer with the one it had when it was new."""
        try:
            completion = self.stack.engine.complete(prompt)
        except HttpError:
            return Outcome(right_tokens=False, cached_tokens=0, finish_reason=ENDED_WITH_ERROR)
        right = completion.tokens == self.stored[seed].tokens
        return Outcome(right, completion.cached_tokens, completion.finish_reason)

    def break_restore(self, seed: int, fault: Callable[[], None]) -> Outcome:
        """Restore a new state, and let the fault happen while its second window is fetched."""
        prompt = self.store(seed)
        with ThreadPoolExecutor(1) as pool:
            with damage.held_load(self.l2, HELD_LOAD) as wait_held:
                outcome = pool.submit(self.answer, prompt, seed)
                wait_held()
                fault()
            return outcome.result()

    def assert_whole_again(self) -> None:
        """Nothing is left of the broken restore, and the control state restores in full."""
        stack = self.stack
        assert stack.engine.ready()
        assert stack.server.ready()
        restore = stack.restore(
            self.prompt(CONTROL_SEED)
        )  # It waits until L1 holds no byte and no lock.
        assert restore.completion.cached_tokens == CHUNKS * CHUNK_TOKENS
        assert restore.completion.tokens == self.stored[CONTROL_SEED].tokens

    def assert_costs_the_restore(self, row: str, outcome: Outcome) -> None:
        """Under recompute the answer is right; under fail the request ends with an error."""
        self.rows[row] = outcome
        assert outcome.cached_tokens == 0
        if self.policy == FAIL:
            assert outcome.finish_reason == ENDED_WITH_ERROR
        else:
            assert outcome == Outcome(right_tokens=True, cached_tokens=0, finish_reason="length")
        self.assert_whole_again()


PARAMETERS = [(shape, policy) for shape in LAYOUTS for policy in (RECOMPUTE, FAIL)]


@contextmanager
def running_bench(
    parameter: tuple[ModelShape, str],
    model: ModelMaker,
    folder: Path,
    *,
    ranks: int = 1,
    heartbeat: float = 3.0,
) -> Iterator[Bench]:
    """Start a stack and store the control state; stop it in the end."""
    shape, policy = parameter
    chunk_bytes = CHUNK_TOKENS * shape.token_kv_bytes
    workers_metrics = folder / "metrics"
    workers_metrics.mkdir()
    engine = EngineConfig(
        model(shape),
        ranks=ranks,
        max_tokens=2 * CHUNKS * CHUNK_TOKENS,
        kv_cache_bytes=4 * CHUNKS * chunk_bytes,
        load_failure_policy=policy,
        arguments=("--block-size", str(CHUNK_TOKENS)),
        connector_settings={
            "lmcache.mp.heartbeat_interval": heartbeat,
            "lmcache.mp.stalled_load_timeout": STALL_SECONDS,
        },
        environment={"PROMETHEUS_MULTIPROC_DIR": str(workers_metrics)},
    )
    config = ServerConfig(
        l2_folder=folder / "l2",
        adapter=damage.adapter(folder / "l2"),
        l1_bytes=L1_CHUNKS * chunk_bytes,
        chunk_tokens=CHUNK_TOKENS,
        window_chunks=WINDOW_CHUNKS,
        arguments=(
            *("--l2-prefetch-window-timeout-seconds", str(DEADLINE_SECONDS)),
            *("--l2-prefetch-restore-timeout-seconds", str(DEADLINE_SECONDS)),
        ),
        environment=plugin_environment(),
    )
    bench = Bench(shape, policy, config, ServerSwitch(engine, folder), ranks)
    try:
        bench.store(CONTROL_SEED)
        yield bench
    finally:
        bench.switch.stop()


def name_of(parameter: tuple[ModelShape, str]) -> str:
    return f"{parameter[0].name}-{parameter[1]}"


@pytest.fixture(scope="module", params=PARAMETERS, ids=name_of)
def bench(
    request: pytest.FixtureRequest, model: ModelMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with running_bench(request.param, model, tmp_path_factory.mktemp("matrix")) as bench:
        yield bench
        request.config.stash[SUMMARY].extend(table(bench))


@pytest.fixture(scope="module", params=PARAMETERS, ids=name_of)
def two_ranks(
    request: pytest.FixtureRequest, model: ModelMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    # The ranks and the server share two cores.
    ranks = running_bench(
        request.param, model, tmp_path_factory.mktemp("two-ranks"), ranks=2, heartbeat=10.0
    )
    with ranks as bench:
        yield bench
        request.config.stash[SUMMARY].extend(table(bench))


def table(bench: Bench) -> list[str]:
    return [
        f"{bench.shape.name:12} | {bench.policy:9} | {name:32} | "
        f"{outcome.finish_reason:6} | {outcome.cached_tokens} tokens reused"
        for name, outcome in bench.rows.items()
    ]


def take_l2_away(bench: Bench) -> None:
    """Leave an empty folder in place of L2, as when a file system is unmounted."""
    bench.l2.rename(bench.l2.with_name("away"))
    bench.l2.mkdir()


def bring_l2_back(bench: Bench) -> None:
    """Undo take_l2_away, and drop what was stored meanwhile."""
    bench.stack.server.wait_quiet()
    shutil.rmtree(bench.l2)
    bench.l2.with_name("away").rename(bench.l2)


def test_l2_gone_before_the_lookup_is_a_miss(bench: Bench) -> None:
    prompt = bench.store(seed=2)

    take_l2_away(bench)
    outcome = bench.answer(prompt, seed=2)
    bring_l2_back(bench)

    bench.rows["L2 gone before the lookup"] = outcome
    assert outcome == Outcome(right_tokens=True, cached_tokens=0, finish_reason="length")
    bench.assert_whole_again()


def test_l2_gone_in_the_middle_costs_the_restore(bench: Bench) -> None:
    outcome = bench.break_restore(seed=3, fault=lambda: take_l2_away(bench))
    bring_l2_back(bench)

    bench.assert_costs_the_restore("L2 gone in the middle", outcome)


def test_objects_gone_in_the_middle_cost_the_restore(bench: Bench) -> None:
    known = set(bench.l2.iterdir())

    def remove_new_objects() -> None:
        for path in set(bench.l2.iterdir()) - known:
            path.unlink()

    outcome = bench.break_restore(seed=4, fault=remove_new_objects)

    bench.assert_costs_the_restore("objects gone in the middle", outcome)


def test_a_server_killed_in_the_middle_costs_the_restore(bench: Bench) -> None:
    outcome = bench.break_restore(seed=5, fault=bench.switch.crash)
    bench.switch.revive()

    bench.assert_costs_the_restore("server killed in the middle", outcome)


def test_a_server_that_is_silent_costs_the_restore(bench: Bench) -> None:
    """It may still write into the old blocks: nobody gets them until it has answered."""
    prompt, engine = bench.store(seed=7), bench.stack.engine

    with ThreadPoolExecutor(1) as pool, damage.held_load(bench.l2, HELD_LOAD) as wait_held:
        victim = pool.submit(bench.answer, prompt, seed=7)
        wait_held()
        with bench.switch.frozen():
            outcome = victim.result()
            other = bench.answer(bench.prompt(CONTROL_SEED), CONTROL_SEED)
            quarantined = engine.quarantined_blocks()

    assert other == Outcome(right_tokens=True, cached_tokens=0, finish_reason="length")
    assert quarantined > 0
    wait_until(lambda: not engine.quarantined_blocks(), "the load has ended", QUARANTINE_SECONDS)
    bench.assert_costs_the_restore("server stopped", outcome)


def test_an_abort_in_the_middle_gives_everything_back(bench: Bench) -> None:
    prompt = bench.store(seed=6)
    engine, server = bench.stack.engine, bench.stack.server
    before = server.restores()

    with damage.held_load(bench.l2, HELD_LOAD) as wait_held:
        with engine.request_given_up(prompt):
            wait_held()
        engine.wait_idle()

    wait_until(lambda: server.restores() != before, "the restore has ended", DEADLINE_SECONDS)
    assert server.restores() - before == Counter(cancelled=1)
    bench.rows["request aborted in the middle"] = Outcome(True, 0, "abort")
    bench.assert_whole_again()


def test_what_one_of_two_ranks_loses_costs_both_the_restore(two_ranks: Bench) -> None:
    known = set(two_ranks.l2.iterdir())

    def remove_new_objects_of_rank_1() -> None:
        lost = [path for path in set(two_ranks.l2.iterdir()) - known if is_of_rank(path, 1)]
        assert len(lost) == CHUNKS * LAYOUTS[two_ranks.shape]
        for path in lost:
            path.unlink()

    outcome = two_ranks.break_restore(seed=8, fault=remove_new_objects_of_rank_1)

    two_ranks.assert_costs_the_restore("objects of one of two ranks gone", outcome)


def is_of_rank(path: Path, rank: int) -> bool:
    """Tell whether an object is that of a rank of two: its name says so in two bytes."""
    return f"@0x02{rank:02x}" in path.name
