"""What the accepted rows of a run show together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qualify import paper
from qualify.evidence import Evidence, Row
from qualify.experiments.names import (
    ACCOUNTING,
    COMPUTED,
    FAILURES,
    FILES,
    GIVEN,
    LADDER,
    LAW,
    SWEEP,
    TIME,
)

# What windows may take, as a multiple of a whole plan's time: from W = 8, and below.
AIM, AIM_OF_SMALL, SMALL = 1.05, 1.15, 8


@dataclass(frozen=True)
class Claim:
    """One sentence, and whether the rows bear it out.

    Times depend on the machine: a claim about them never fails a run.
    """

    text: str
    holds: bool
    figures: str
    timing: bool = False


def claims(evidence: Evidence) -> list[Claim]:
    """Every claim for which the run has accepted rows."""
    return [claim for find in _FINDERS for claim in find(evidence)]


def failed(evidence: Evidence) -> list[Claim]:
    """The claims that fail a run."""
    return [claim for claim in claims(evidence) if not claim.holds and not claim.timing]


def _whole_plan(evidence: Evidence) -> Iterator[Claim]:
    rows = _accepted(evidence, LADDER)
    for source, tokens in sorted({(row.source, _number(row, "tokens")) for row in rows}):
        tried = [r for r in rows if (r.source, _number(r, "tokens")) == (source, tokens)]
        enough = [_number(r, "l1_bytes") for r in tried if r.figures["reused tokens"]]
        short = [_number(r, "l1_bytes") for r in tried if not r.figures["reused tokens"]]
        state = _number(tried[0], "chunks") * _number(tried[0], "chunk_bytes")
        holds = all(each >= state for each in enough) and all(each < state for each in short)
        least = f"{min(enough) / 2**20:g} MiB" if enough else "none that was tried"
        yield Claim(
            f"Without windows, {tokens:.0f} tokens need an L1 of the state's size ({source})",
            holds and bool(enough),
            f"state {state / 2**20:g} MiB, smallest L1 with full reuse {least}",
        )


def _flat(evidence: Evidence) -> Iterator[Claim]:
    rows = _accepted(evidence, SWEEP)
    for source in sorted({row.source for row in rows}):
        full = [
            row
            for row in rows
            if row.source == source and _number(row, "chunks") >= _number(row, "window_chunks") > 0
        ]
        peaks = {_figure(row, "peak MiB") for row in full}
        if not peaks:
            continue
        most = max(_number(row, "chunks") / _number(row, "window_chunks") for row in full)
        yield Claim(
            f"The peak does not grow with the state ({source})",
            len(peaks) == 1,
            f"{', '.join(f'{peak:g}' for peak in sorted(peaks))} MiB up to {most:.0f} windows",
        )
        yield Claim(
            f"A fresh salt repeats the largest state ({source})",
            any(row.setup.get("fresh") for row in full),
            f"{len(full)} rows",
        )


def _law(evidence: Evidence) -> Iterator[Claim]:
    rows = _accepted(evidence, LAW)
    for source in sorted({row.source for row in rows}):
        own = [row for row in rows if row.source == source]
        each = {_figure(row, "peak MiB") / _number(row, "window_chunks") for row in own}
        yield Claim(
            f"The peak is W x one chunk ({source})",
            len(each) == 1,
            f"{', '.join(f'{value:g}' for value in sorted(each))} MiB a chunk, {len(own)} values "
            "of W",
        )


def _all_or_nothing(evidence: Evidence) -> Iterator[Claim]:
    rows = _accepted(evidence, FAILURES)
    if rows:
        reused = {(_figure(row, "reused tokens"), _number(row, "tokens")) for row in rows}
        yield Claim(
            "What breaks costs all reuse or none, and the output stays right",
            all(got in (0, tokens) for got, tokens in reused),
            f"{len(rows)} rows",
        )


def _accounting(evidence: Evidence) -> Iterator[Claim]:
    rows = _accepted(evidence, ACCOUNTING)
    if rows:
        pairs = [(row.source, _figure(row, COMPUTED), _figure(row, GIVEN)) for row in rows]
        yield Claim(
            "A chunk takes what vLLM's KV cache specs say",
            all(computed == given for _, computed, given in pairs),
            "; ".join(f"{source}: {a:,.0f} computed, {b:,.0f} given" for source, a, b in pairs),
        )


def _concurrency(evidence: Evidence) -> Iterator[Claim]:
    rows = [row for row in _accepted(evidence, FILES) if "ratio" in row.figures]
    if not rows:
        return
    peaks = {
        value for row in rows for name, value in row.figures.items() if name.startswith("peak")
    }
    yield Claim(
        "Reading several files at once does not change the peak",
        len(peaks) == 1,
        ", ".join(f"{peak} MiB" for peak in peaks),
    )
    slow = [row for row in rows if "latency" in row.setup]
    if slow:
        best = max(_figure(row, "ratio") for row in slow)
        yield Claim(
            f"On storage with a latency per read, several files at once exceed the paper's "
            f"ratio of {paper.FILES_RATIO}",
            best > paper.FILES_RATIO,
            f"{best:.2f}",
            timing=True,
        )


def _beside_whole(evidence: Evidence) -> Iterator[Claim]:
    rows = [row for row in _accepted(evidence, TIME) if "windows / whole" in row.figures]
    if rows:
        ratios = [_figure(row, "windows / whole") for row in rows]
        windows = [_number(row, "window_chunks") for row in rows]
        each = zip(rows, windows, ratios, strict=True)
        yield Claim(
            f"Windows take at most {AIM} times as long as a whole plan, {AIM_OF_SMALL} times "
            f"below W = {SMALL}",
            all(
                ratio <= (AIM_OF_SMALL if window < SMALL else AIM)
                for window, ratio in zip(windows, ratios, strict=True)
            ),
            "; ".join(f"W = {w} {row.setup['mode']}: {ratio:.2f}" for row, w, ratio in each),
            timing=True,
        )


_FINDERS: tuple[Callable[[Evidence], Iterator[Claim]], ...] = (
    _whole_plan,
    _flat,
    _law,
    _all_or_nothing,
    _accounting,
    _concurrency,
    _beside_whole,
)


def _accepted(evidence: Evidence, experiment: str) -> list[Row]:
    return [row for row in evidence.of(experiment) if row.accepted]


def _number(row: Row, name: str) -> float:
    value = row.setup[name]
    assert isinstance(value, int | float)
    return value


def _figure(row: Row, name: str) -> float:
    value = row.figures[name]
    assert isinstance(value, int | float)
    return value
