"""Experiment 4: stores that are away, and a rank whose restore fails.

Two stores lie below L1: a local one, and a second file system in the place of a remote
store. Every row ends in full reuse or in none, with the right output, on healthy ranks.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qualify.bench import CHUNK_TOKENS, SOURCE, Bench, State, running_bench
from qualify.experiments.names import FAILURES
from qualify.observation import Expected
from qualify.recorder import Recorder
from tests.integration import damage
from tests.integration.environment import plugin_environment
from tests.integration.models import ONE_GROUP
from tests.integration.server import ServerConfig

RANKS = 2
WINDOW = 8
CONTROL, AWAY, ABSENT, BROKEN = 1, 2, 3, 4  # Seeds.


class Stores:
    """The folders of both stores."""

    def __init__(self, folder: Path) -> None:
        """Lay them side by side."""
        self.local = folder / "local"
        self.remote = folder / "remote"

    def config(self) -> ServerConfig:
        """A server over both; the remote one takes orders to lose objects."""
        remote = json.dumps(damage.adapter(self.remote))
        return ServerConfig(
            self.local,
            chunk_tokens=CHUNK_TOKENS,
            arguments=("--l2-adapter", remote),
            environment=plugin_environment(),
        )


def run(recorder: Recorder, chunks: int, folder: Path) -> None:
    """Start an engine of two ranks over two stores, and take things away."""
    if not recorder.wants(FAILURES):
        return
    stores = Stores(folder)
    with (
        recorder.experiment(FAILURES),
        running_bench(ONE_GROUP, chunks, folder, stores.config(), RANKS) as bench,
    ):
        recorder.say("starting a real engine of two ranks and storing the states")
        bench.store([State(chunks, seed) for seed in (CONTROL, AWAY, ABSENT, BROKEN)], WINDOW)
        rows(recorder, bench, stores, chunks)


def rows(recorder: Recorder, bench: Bench, stores: Stores, chunks: int) -> None:
    """Break one thing a row."""
    with away(stores.remote):
        row(recorder, bench, "remote store unavailable", State(chunks, AWAY))
    with away(stores.remote), away(stores.local):
        nothing = bench.not_at_all(State(chunks, ABSENT), promised_tokens=0)
        row(recorder, bench, "remote and local both absent", State(chunks, ABSENT), nothing)
    broken = State(chunks, BROKEN)
    with away(stores.local):
        damage.order(object_of_last_rank(bench, stores, broken), damage.LOSE)
        failed = bench.not_at_all(broken, promised_tokens=broken.tokens)
        row(recorder, bench, "one rank fails", broken, failed)
    row(recorder, bench, "nothing, after all that", State(chunks, CONTROL))


def row(
    recorder: Recorder, bench: Bench, name: str, state: State, expected: Expected | None = None
) -> None:
    """Restore a state and keep what came of it."""
    stack = bench.serve(l1_chunks=(state.chunks + 1) * RANKS, window=WINDOW)
    expected = expected or replace(bench.in_full(stack, state), objects=None)
    seen = bench.restore(stack, state, expected)
    recorder.add(
        name,
        SOURCE,
        [seen],
        setup={**bench.setup(stack, state), "ranks": RANKS},
        figures={
            "reused tokens": seen.reused_tokens,
            "promised tokens": seen.grown("l2_hit_tokens"),
            "right output": seen.output.expected == seen.output.got,
            "seconds": seen.seconds,
        },
    )


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """Put an empty folder in place of a store, as when its file system is unmounted.

    What is stored meanwhile is dropped.
    """
    aside = folder.with_name(folder.name + "-aside")
    folder.rename(aside)
    folder.mkdir()
    try:
        yield
    finally:
        gone = folder.with_name(folder.name + "-gone")
        folder.rename(gone)
        aside.rename(folder)
        for path in gone.iterdir():
            path.unlink()
        gone.rmdir()


def object_of_last_rank(bench: Bench, stores: Stores, state: State) -> Path:
    """An object of the last rank in the remote store, from the middle of a state."""
    names = sorted(path.name for path in bench.stored[state].files)
    ranks = sorted({name.split("@")[1] for name in names})
    own = [name for name in names if name.split("@")[1] == ranks[-1]]
    return stores.remote / own[len(own) // 2]
