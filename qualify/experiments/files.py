"""Experiment 5, and 7's comparison of windows with whole plans, over real files."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.fs_load_concurrency import Buffer, run_plain
from benchmarks.pairs import drop_cache, measure_pairs
from qualify.evidence import Value
from qualify.experiments.engine import phases
from qualify.experiments.names import FILES, TIME
from qualify.observation import Observation
from qualify.profiles import FileSizes
from qualify.recorder import Recorder
from qualify.slow_reads import adapter as slow_adapter
from qualify.synthetic import (
    CANARY,
    SOURCE,
    Bench,
    running_bench,
    with_concurrency,
)
from tests.integration.client import State
from tests.integration.environment import plugin_environment
from tests.integration.geometry import PLAIN, Kind
from tests.integration.server import ServerConfig
from tests.integration.units import MIB

COLD, WARM, SLOW = "cold", "warm", "slow storage"
PLAIN_READS = "plain preadv threads"
RAW_RUNS = 3
WARM_UP_PAIRS = 1
EQUAL_CONCURRENCY = 4


@dataclass
class Files:
    """A stored state, and servers over its files."""

    config: ServerConfig
    state: State
    folder: Path
    window: int

    @property
    def paths(self) -> list[Path]:
        """The files of the state and of the canary."""
        return sorted(self.config.l2_folder.glob("*.data"))

    @contextmanager
    def restoring(self, name: str, window: int, concurrency: int) -> Iterator[Bench]:
        """Yield a bench with room for a window, or for the whole plan."""
        chunks = window or self.state.chunks + 1
        config = replace(
            with_concurrency(self.config, concurrency),
            window_chunks=window or None,
            l1_bytes=chunks * PLAIN.staged_bytes,
        )
        with running_bench(config, PLAIN, self._blocks, self.folder / name) as bench:
            yield bench

    def store(self) -> None:
        """Store the state, and what the request afterwards restores."""
        with self.restoring("store", 0, 0) as bench:
            for state in (self.state, CANARY):
                bench.store(state)

    def _blocks(self, _kind: Kind) -> int:
        return self.state.chunks


class Timed:
    """A bench whose restores are timed, with all that was observed."""

    def __init__(self, bench: Bench, state: State, before: Callable[[], None]) -> None:
        """Restore a state again and again, after before()."""
        self.bench = bench
        self.observations: list[Observation] = []
        self._state = state
        self._before = before

    @property
    def setup(self) -> dict[str, Value]:
        """What was chosen."""
        return self.bench.setup(self._state)

    def __call__(self) -> float:
        """Restore once and return the seconds."""
        seen = self.bench.restore(self._state, before=self._before)
        self.observations.append(seen)
        return seen.seconds


def run(recorder: Recorder, sizes: FileSizes, folder: Path) -> None:
    """Store a state in files and measure."""
    if not recorder.wants(FILES, TIME):
        return
    files = Files(ServerConfig(folder / "l2"), State(sizes.chunks, seed=1), folder, sizes.window)
    with recorder.experiment(FILES):
        files.store()
        if recorder.wants(FILES):
            raw(recorder, sizes, files)
            beside_each_other(recorder, sizes, files)
    if recorder.wants(TIME):
        with recorder.experiment(TIME):
            windows(recorder, sizes, files)


def beside_each_other(recorder: Recorder, sizes: FileSizes, files: Files) -> None:
    """Compare concurrencies on this machine's storage, and on one with a latency."""
    concurrency(recorder, files, sizes.concurrency, _modes(files), sizes.pairs)
    concurrency(
        recorder,
        slow(files, sizes.latency),
        sizes.concurrency,
        {SLOW: lambda: None},
        sizes.slow_pairs,
        latency=sizes.latency,
    )


def raw(recorder: Recorder, sizes: FileSizes, files: Files) -> None:
    """Read the files with plain threads: what the device and the page cache give."""
    buffers = [Buffer(path.stat().st_size) for path in files.paths]
    for mode, before in _modes(files).items():
        for threads in sizes.concurrency:
            rates = []
            with ThreadPoolExecutor(threads) as pool:
                for _ in range(1 + RAW_RUNS):
                    before()
                    seconds = run_plain(pool, files.paths, buffers, odirect=False)
                    rates.append(sum(len(each.byte_array) for each in buffers) / MIB / seconds)
            recorder.add(
                f"raw reads, {mode}, C = {threads}",
                PLAIN_READS,
                setup={"mode": mode, "concurrency": threads, "raw": True},
                figures={"MiB/s": statistics.median(rates[1:])},
                series={"MiB/s": tuple(rates[1:])},
            )


def concurrency(
    recorder: Recorder,
    files: Files,
    values: tuple[int, ...],
    modes: Mapping[str, Callable[[], None]],
    rounds: int,
    **setup: Value,
) -> None:
    """Restore with one file at a time and with several, in turn."""
    one, *others = values
    with files.restoring(f"c-{one}", files.window, one) as base:
        for other in others:
            with files.restoring(f"c-{other}", files.window, other) as bench:
                for mode, before in modes.items():
                    sides = [Timed(each, files.state, before) for each in (base, bench)]
                    _add(recorder, mode, values[0], other, sides, rounds, setup)


def slow(files: Files, latency: float) -> Files:
    """The same files on storage that takes a while for each read."""
    config = replace(
        files.config,
        adapter=slow_adapter(files.config.l2_folder, latency),
        environment=plugin_environment(),
    )
    return replace(files, config=config, folder=files.folder / "slow")


def windows(recorder: Recorder, sizes: FileSizes, files: Files) -> None:
    """Restore through windows and as a whole plan at equal concurrency, in turn."""
    with files.restoring("whole", 0, EQUAL_CONCURRENCY) as whole:
        for window in sizes.windows:
            with files.restoring(f"w-{window}", window, EQUAL_CONCURRENCY) as bench:
                for mode, before in _modes(files).items():
                    sides = [Timed(each, files.state, before) for each in (bench, whole)]
                    _beside_whole(recorder, mode, sides, sizes.pairs)


def _beside_whole(recorder: Recorder, mode: str, sides: list[Timed], rounds: int) -> None:
    windowed, whole = sides
    pairs = measure_pairs(windowed, whole, lambda: None, rounds, WARM_UP_PAIRS)
    recorder.add(
        f"windows and whole plan, {mode}, W = {windowed.bench.window}",
        SOURCE,
        [*windowed.observations, *whole.observations],
        setup={**windowed.setup, "mode": mode, "concurrency": EQUAL_CONCURRENCY},
        figures={
            "windows / whole": pairs.median_ratio(),
            "windows s": statistics.median(pairs.first),
            "whole s": statistics.median(pairs.second),
            **phases(windowed.observations[WARM_UP_PAIRS:]),
        },
        series={"windows": tuple(pairs.first), "whole": tuple(pairs.second)},
    )


def _add(
    recorder: Recorder,
    mode: str,
    one: int,
    other: int,
    sides: list[Timed],
    rounds: int,
    setup: Mapping[str, Value],
) -> None:
    first, second = sides
    pairs = measure_pairs(first, second, lambda: None, rounds, WARM_UP_PAIRS)
    peaks = [each.observations[-1].after.peak_bytes or 0 for each in sides]
    recorder.add(
        f"{mode}, C = {one} and {other}",
        SOURCE,
        [*first.observations, *second.observations],
        setup={**first.setup, "mode": mode, "concurrency": other, **setup},
        figures={
            f"C = {one}, s": statistics.median(pairs.first),
            f"C = {other}, s": statistics.median(pairs.second),
            "ratio": pairs.median_ratio(),
            f"peak MiB, C = {one}": peaks[0] / MIB,
            f"peak MiB, C = {other}": peaks[1] / MIB,
        },
        series={f"C = {one}": tuple(pairs.first), f"C = {other}": tuple(pairs.second)},
    )


def _modes(files: Files) -> dict[str, Callable[[], None]]:
    return {COLD: lambda: drop_cache(files.paths), WARM: lambda: None}
