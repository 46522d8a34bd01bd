"""Pictures of a run, as SVG that is the same each time."""

import io
from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qualify import paper
from qualify.evidence import Evidence, Row
from qualify.experiments.names import FILES, LADDER, LAW, SWEEP, TIME
from qualify.observation import PHASES

SIZE = (7.2, 4.0)
OURS, CLIENT, PAPER, WHOLE = "#0b5fa5", "#3aa6a0", "#888888", "#c2571a"
MIB, GIB = 1 << 20, 1 << 30

Draw = Callable[[Axes, Sequence[Row]], None]


def pictures(evidence: Evidence, experiment: str) -> list[tuple[str, bytes]]:
    """The pictures of an experiment, each with a caption; only accepted rows are drawn."""
    made = []
    for caption, (of, draw) in _PICTURES.items():
        rows = [row for row in evidence.rows if row.experiment in of and row.accepted]
        if of[0] == experiment and any(row.experiment == experiment for row in rows):
            made.append((caption, _svg(caption, draw, rows)))
    return made


def _svg(caption: str, draw: Draw, rows: Sequence[Row]) -> bytes:
    with mpl.rc_context({"svg.hashsalt": caption, "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(SIZE, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
        draw(axes, rows)
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()


def _capacity(axes: Axes, rows: Sequence[Row]) -> None:
    for source, colour, marker in (
        ("real engine", OURS, "o"),
        ("client without a model", CLIENT, "s"),
        ("the given engine", OURS, "o"),
    ):
        for experiment, name, figure, paint in (
            (SWEEP, "windows", "peak MiB", colour),
            (LADDER, "whole plan, smallest L1", "", WHOLE),
        ):
            own = [row for row in rows if row.source == source and row.experiment == experiment]
            points = sorted(_points(own, figure))
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, marker=marker, color=paint, label=f"{name}, {source}")
    states = [each.tokens / 256 * paper.CHUNK_BYTES / MIB for each in paper.LADDER]
    axes.plot(
        states,
        [each.peak_gib * 1024 for each in paper.LADDER],
        "--^",
        color=PAPER,
        label="whole plan, paper",
    )
    sweep = [tokens / 256 * paper.CHUNK_BYTES / MIB for tokens in paper.SWEEP_TOKENS]
    axes.plot(sweep, [paper.WINDOW_MIB] * len(sweep), "--v", color=PAPER, label="W = 32, paper")
    axes.set(xscale="log", yscale="log", xlabel="state, MiB", ylabel="host memory, MiB")
    axes.legend(fontsize=8)


def _points(rows: Sequence[Row], figure: str) -> list[tuple[float, float]]:
    """Sizes of states and what they took; of whole plans the smallest L1 that was enough."""
    points: dict[float, float] = {}
    for row in rows:
        if row.figures["reused tokens"] and "state_bytes" in row.setup:
            value = row.figures[figure] if figure else _number(row.setup["l1_bytes"]) / MIB
            state = _number(row.setup["state_bytes"]) / MIB
            points[state] = min(_number(value), points.get(state, float("inf")))
    return list(points.items())


def _law(axes: Axes, rows: Sequence[Row]) -> None:
    for source, colour in (("real engine", OURS), ("client without a model", CLIENT)):
        own = sorted(
            (_number(row.setup["window_chunks"]), _number(row.figures["peak MiB"]))
            for row in rows
            if row.source == source
        )
        if own:
            axes.plot(*zip(*own, strict=True), "o-", color=colour, label=source)
    law = [window * paper.CHUNK_BYTES / MIB for window in paper.LAW]
    axes.plot(paper.LAW, law, "--v", color=PAPER, label="paper")
    axes.set(xscale="log", yscale="log", xlabel="W, chunks", ylabel="peak, MiB")
    axes.set_xticks(paper.LAW, [str(window) for window in paper.LAW])
    axes.minorticks_off()
    axes.legend(fontsize=8)


def _ratios(axes: Axes, rows: Sequence[Row]) -> None:
    own = [row for row in rows if "ratio" in row.figures]
    axes.bar([row.name for row in own], [_number(row.figures["ratio"]) for row in own], color=OURS)
    axes.axhline(paper.FILES_RATIO, color=PAPER, linestyle="--", label="paper, C = 1 and 4")
    axes.set(ylabel="restore time, one file at a time / several")
    axes.tick_params(axis="x", rotation=20)
    axes.legend(fontsize=8)


def _phases(axes: Axes, rows: Sequence[Row]) -> None:
    floor = [0.0] * len(rows)
    colours = (PAPER, OURS, CLIENT, WHOLE)
    for phase, colour in zip(PHASES, colours, strict=True):
        seconds = [_number(row.figures[f"{phase} s"]) for row in rows]
        axes.bar([row.name for row in rows], seconds, bottom=floor, label=phase, color=colour)
        floor = [a + b for a, b in zip(floor, seconds, strict=True)]
    axes.set(ylabel="seconds of a restore through windows")
    axes.tick_params(axis="x", labelsize=7, rotation=10)
    axes.legend(fontsize=8)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


_PICTURES: dict[str, tuple[tuple[str, ...], Draw]] = {
    "Host memory against the size of the state": ((SWEEP, LADDER), _capacity),
    "Host memory against W": ((LAW,), _law),
    "Restores of the same state, one file at a time against several": ((FILES,), _ratios),
    "Time by phase, by the server's clock": ((TIME,), _phases),
}
