"""Experiments 1 to 3 at the paper's geometry and sizes, by a client without a model."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from qualify.experiments.engine import restore_figures
from qualify.experiments.names import LADDER, LAW, SWEEP
from qualify.machine import available_bytes
from qualify.profiles import PaperSizes
from qualify.recorder import Recorder
from qualify.synthetic import SOURCE, Bench, paper_blocks, paper_config, running_bench
from tests.integration.client import State
from tests.integration.geometry import DEEPSEEK_V4_FLASH
from tests.integration.units import GIB

SALT = "qualify"
FRESH_SEED = 10_000
SPARE_BYTES = 4 * GIB
"""What must stay free beside L1: the blocks, the processes, and the machine's own."""


def run(recorder: Recorder, sizes: PaperSizes, folder: Path) -> None:
    """Measure what this profile has of the paper's rows."""
    if recorder.wants(SWEEP):
        with recorder.experiment(SWEEP):
            sweep(recorder, sizes, folder / "sweep")
    if recorder.wants(LAW) and sizes.law:
        with recorder.experiment(LAW):
            law(recorder, sizes, folder / "law")
    if recorder.wants(LADDER) and sizes.ladder:
        with recorder.experiment(LADDER):
            ladder(recorder, sizes, folder / "ladder")


def sweep(recorder: Recorder, sizes: PaperSizes, folder: Path) -> None:
    """Restore the paper's rows from one server, the largest again with a fresh salt."""
    with ExitStack() as started:
        bench = _bench(started, folder, sizes.window, max(sizes.sweep))
        for chunks in sizes.sweep:
            _add(recorder, bench, State(chunks, seed=chunks), f"paper: {chunks} chunks")
        again = State(max(sizes.sweep), seed=FRESH_SEED, salt=SALT)
        _add(recorder, bench, again, f"paper: {again.chunks} chunks, fresh salt")


def law(recorder: Recorder, sizes: PaperSizes, folder: Path) -> None:
    """Restore one state through windows of several sizes."""
    for window in sizes.law:
        with ExitStack() as started:
            bench = _bench(started, folder / str(window), window, sizes.law_state)
            _add(recorder, bench, State(sizes.law_state, seed=1), f"paper: W = {window}")


def ladder(recorder: Recorder, sizes: PaperSizes, folder: Path) -> None:
    """Restore whole plans in an L1 that is too small, then in the paper's."""
    for chunks, rungs in sizes.ladder:
        for rung in rungs:
            name = f"paper: {chunks} chunks, L1 of {rung // GIB} GiB"
            if available_bytes() < rung + SPARE_BYTES:
                left = available_bytes() / GIB
                recorder.leave_out(
                    f"{LADDER}, {name}", f"{left:.1f} GiB of memory are free here, too few"
                )
                continue
            with ExitStack() as started:
                where = folder / f"{chunks}-{rung // GIB}"
                bench = _bench(started, where, 0, chunks, l1_bytes=rung)
                _add(recorder, bench, State(chunks, seed=chunks), name)


def _bench(
    started: ExitStack, folder: Path, window: int, largest: int, l1_bytes: int = GIB
) -> Bench:
    return started.enter_context(
        running_bench(
            paper_config(folder, window, l1_bytes),
            DEEPSEEK_V4_FLASH,
            paper_blocks(largest),
            folder,
        )
    )


def _add(recorder: Recorder, bench: Bench, state: State, name: str) -> None:
    seen = bench.restore(state)
    if not bench.window and not seen.reused_tokens:  # A whole plan may not fit.
        seen = replace(seen, expected=bench.not_at_all())
    recorder.add(name, SOURCE, [seen], setup=bench.setup(state), figures=restore_figures(seen))
