"""Experiments 1 to 3, 6, and 7's comparison with recomputing, on a real engine."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.pairs import measure_pairs
from qualify.bench import SOURCE, Bench, State, running_bench
from qualify.evidence import Value
from qualify.experiments import registered
from qualify.experiments.names import ACCOUNTING, LADDER, LAW, SWEEP, TIME
from qualify.observation import Observation
from qualify.profiles import EngineSizes
from qualify.recorder import Recorder
from tests.integration.engine_api import EngineApi
from tests.integration.models import ONE_GROUP
from tests.integration.stack import Stack, random_prompt
from tests.integration.units import MIB

SALT = "qualify"
FRESH_SEED = 10_000
WARM_UP_PAIRS = 1


def run(recorder: Recorder, sizes: EngineSizes, folder: Path) -> None:
    """Start an engine, store all states, and measure."""
    if not recorder.wants(*PARTS):
        return
    largest = max(*sizes.ladder, *sizes.sweep, sizes.law_state, sizes.recomputed)
    with ExitStack() as started:
        with recorder.experiment(SWEEP):
            recorder.say("starting a real engine and storing the states")
            bench = started.enter_context(running_bench(ONE_GROUP, largest, folder))
            bench.store(states(sizes))
        if not bench.stored:
            return
        for name, part in PARTS.items():
            if recorder.wants(name):
                with recorder.experiment(name):
                    part(recorder, bench, sizes)


def states(sizes: EngineSizes) -> list[State]:
    """All states, and the largest of the sweep once more with a fresh salt."""
    chunks = sorted({*sizes.ladder, *sizes.sweep, sizes.law_state, sizes.recomputed})
    return [*(state(each) for each in chunks), fresh(sizes)]


def state(chunks: int) -> State:
    """The state of so many chunks."""
    return State(chunks, seed=chunks)


def fresh(sizes: EngineSizes) -> State:
    """The largest state of the sweep, as a prompt and a salt that nobody has seen."""
    return State(max(sizes.sweep), seed=FRESH_SEED, salt=SALT)


def sweep(recorder: Recorder, bench: Bench, sizes: EngineSizes) -> None:
    """Restore states of all sizes through one window: one engine, one server."""
    stack = bench.serve(l1_chunks=sizes.window, window=sizes.window)
    for each in [*(state(chunks) for chunks in sizes.sweep), fresh(sizes)]:
        seen = bench.restore(stack, each)
        name = f"{each.chunks} chunks" + (", fresh salt" if each.salt else "")
        add(recorder, bench, stack, each, name, seen)


def law(recorder: Recorder, bench: Bench, sizes: EngineSizes) -> None:
    """Restore one state through windows of several sizes."""
    for window in sizes.law:
        stack = bench.serve(l1_chunks=window, window=window)
        each = state(sizes.law_state)
        add(recorder, bench, stack, each, f"W = {window}", bench.restore(stack, each))


def ladder(recorder: Recorder, bench: Bench, sizes: EngineSizes) -> None:
    """Restore states as whole plans, with more and more L1, until all of each is reused."""
    waiting = list(sizes.ladder)
    for rung in sizes.rungs:
        stack = bench.serve(l1_chunks=rung)
        for chunks in [each for each in waiting if each <= 2 * rung]:
            seen = as_found(bench, stack, state(chunks))
            name = f"{chunks} chunks, L1 of {rung}"
            add(recorder, bench, stack, state(chunks), name, seen)
            if seen.reused_tokens:
                waiting.remove(chunks)


def as_found(bench: Bench, stack: Stack, each: State) -> Observation:
    """Restore a state that may or may not fit: all of it is reused, or nothing."""
    seen = bench.restore(stack, each)
    if seen.reused_tokens:
        return seen
    return replace(seen, expected=bench.not_at_all(each, promised_tokens=0))


def against_recomputing(recorder: Recorder, bench: Bench, sizes: EngineSizes) -> None:
    """Time restores beside prompts of the same length that nobody has stored."""
    stack = bench.serve(l1_chunks=sizes.window, window=sizes.window)
    each = state(sizes.recomputed)
    beside_recomputing(
        recorder,
        stack.engine,
        each,
        lambda: bench.restore(stack, each),
        sizes.recompute_pairs,
        source=SOURCE,
        setup=bench.setup(stack, each),
    )


def beside_recomputing(
    recorder: Recorder,
    engine: EngineApi,
    each: State,
    restore: Callable[[], Observation],
    rounds: int,
    *,
    source: str,
    setup: Mapping[str, Value],
) -> None:
    """Restore a state and compute a new prompt of its length, in turn."""
    observations: list[Observation] = []
    seeds = count(FRESH_SEED + 1)

    def restored() -> float:
        observations.append(restore())
        return observations[-1].seconds

    def recomputed() -> float:
        prompt = random_prompt(len(each.prompt), next(seeds))
        began = time.perf_counter()
        engine.complete(prompt, salt=each.salt)
        return time.perf_counter() - began

    pairs = measure_pairs(restored, recomputed, lambda: None, rounds, WARM_UP_PAIRS)
    recorder.add(
        f"restored and recomputed, {each.chunks} chunks",
        source,
        observations,
        setup=setup,
        figures={
            "restored / recomputed": pairs.median_ratio(),
            "restored s": statistics.median(pairs.first),
            "recomputed s": statistics.median(pairs.second),
            **phases(observations[WARM_UP_PAIRS:]),
        },
        series={"restored": tuple(pairs.first), "recomputed": tuple(pairs.second)},
    )


def add(
    recorder: Recorder, bench: Bench, stack: Stack, each: State, name: str, seen: Observation
) -> None:
    """Keep one restore as a row."""
    setup = bench.setup(stack, each)
    recorder.add(name, SOURCE, [seen], setup=setup, figures=restore_figures(seen))


def restore_figures(seen: Observation) -> dict[str, Value]:
    """What a row shows of a restore."""
    return {
        "reused tokens": seen.reused_tokens,
        "peak MiB": None if seen.after.peak_bytes is None else seen.after.peak_bytes / MIB,
        "largest L1 seen, MiB": seen.largest_l1_bytes / MIB,
        "seconds": seen.seconds,
    }


def phases(observations: list[Observation]) -> dict[str, Value]:
    """The mean seconds of each phase, by the server's own clock."""
    count = len(observations)
    totals = [seen.phases() for seen in observations]
    return {f"{phase} s": sum(each[phase] for each in totals) / count for phase in totals[0]}


PARTS = {
    SWEEP: sweep,
    # On the server of the sweep: an exchange of servers takes as long as many restores.
    TIME: against_recomputing,
    ACCOUNTING: registered.against_the_server,
    LAW: law,
    LADDER: ladder,
}
