"""The report of a run: one HTML file that needs no other."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from qualify import paper
from qualify.claims import Claim, claims, failed
from qualify.evidence import Evidence, Row, Value
from qualify.experiments.names import ALL, SWEEP
from qualify.plots import pictures

REPORT = "report.html"

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: 13px }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.bad { color: #a4161a; font-weight: 600 } .good { color: #1b6b3a }
figure { margin: 1rem 0 } figcaption { font-size: 13px; color: #555 } img { max-width: 100% }
"""


def outcome(evidence: Evidence) -> tuple[int, str]:
    """The exit code of a run and one sentence about it."""
    rejected, broken = evidence.rejected, failed(evidence)
    accepted = f"{len(evidence.rows) - len(rejected)} of {len(evidence.rows)} rows accepted"
    if rejected:
        row = rejected[0]
        first = row.rejections[0]
        why = f"{row.experiment}, {row.name}: {first.check}: {first.reason}"
        return 1, f"REJECTED ({accepted}): {why}"
    if broken:
        return 1, f"NOT BORNE OUT ({accepted}): {broken[0].text}: {broken[0].figures}"
    if not evidence.complete:
        return 1, f"INCOMPLETE ({accepted}): the run did not end"
    if not evidence.rows:
        return 1, "NOTHING MEASURED: no row was run"
    return 0, f"ACCEPTED ({accepted})"


def write_report(evidence: Evidence, folder: Path) -> Path:
    """Write the report into a folder and return its path."""
    path = folder / REPORT
    path.write_text(page(evidence), encoding="utf-8")
    return path


def page(evidence: Evidence) -> str:
    """The report, which follows from the evidence alone."""
    return "\n".join(_lines(evidence)) + "\n"


def _lines(evidence: Evidence) -> Iterator[str]:
    code, message = outcome(evidence)
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f"<title>Qualification of bounded restore</title><style>{_STYLE}</style></head><body>"
    yield "<h1>Qualification of bounded restore</h1>"
    yield f'<p class="{"bad" if code else "good"}">{escape(message)}</p>'
    yield from _about(evidence)
    yield from _claims(claims(evidence))
    yield from _rejected(evidence)
    yield from _papers_table(evidence)
    for experiment in ALL:
        yield from _experiment(evidence, experiment)
    if evidence.not_run:
        yield "<h2>Not run</h2>"
        rows = [[each.what, each.reason] for each in evidence.not_run]
        yield from _table(["what", "why"], rows)
    yield "</body></html>"


def _about(evidence: Evidence) -> Iterator[str]:
    machine, subject = evidence.machine, evidence.subject
    changed = ", with changes" if subject.changed else ""
    yield from _table(
        ["run", ""],
        [
            ["profile", evidence.profile],
            ["started", evidence.started],
            ["finished", evidence.finished or "never: incomplete"],
            ["machine", f"{machine.description}, {machine.memory_bytes / 2**30:.0f} GiB, "
             f"{machine.architecture}, {machine.system}, Python {machine.python}"],
            ["load average", _load(evidence)],
            ["installed", ", ".join(f"{k} {v}" for k, v in sorted(subject.versions.items()))],
            ["over", ", ".join(f"{k} {v}" for k, v in sorted(subject.pins.items()))],
            ["queue", f"sha256 {subject.queue[:16]}, commit {subject.commit[:12] or '?'}{changed}"],
        ],
    )  # fmt: skip


def _load(evidence: Evidence) -> str:
    words = " at the start, ".join(f"{each:g}" for each in evidence.load)
    return f"{words} at the end" if evidence.finished else words


def _claims(found: Sequence[Claim]) -> Iterator[str]:
    if found:
        yield "<h2>What the accepted rows show</h2>"
        rows = [
            [each.text, ("yes" if each.holds else "no") + _timing(each), each.figures]
            for each in found
        ]
        yield from _table(["claim", "holds", "figures"], rows)


def _timing(claim: Claim) -> str:
    return " (a time: it does not fail a run)" if claim.timing else ""


def _rejected(evidence: Evidence) -> Iterator[str]:
    rows = [
        [row.experiment, row.name, each.check, each.reason]
        for row in evidence.rejected
        for each in row.rejections
    ]
    if rows:
        yield '<h2 class="bad">Rejected rows</h2>'
        yield from _table(["experiment", "row", "check", "reason"], rows)


def _papers_table(evidence: Evidence) -> Iterator[str]:
    """The paper's six rows beside ours; those not run are said to be."""
    yield "<h2>The paper's table beside ours</h2>"
    ours = {
        row.setup["tokens"]: row
        for row in evidence.of(SWEEP)
        if row.setup.get("geometry") == "deepseek-v4-flash" and not row.setup.get("fresh")
    }
    whole = {each.tokens: each for each in paper.LADDER}
    rows: list[list[Value]] = []
    for tokens in sorted({*paper.SWEEP_TOKENS, *(int(str(each)) for each in ours)}):
        own, plan = ours.get(tokens), whole.get(tokens)
        rows.append(
            [
                tokens,
                tokens // 256 * paper.CHUNK_BYTES / 2**30,
                plan.peak_gib if plan else "not measured",
                paper.WINDOW_MIB if tokens in paper.SWEEP_TOKENS else "not measured",
                _own(own, "peak MiB"),
                _own(own, "seconds"),
            ]
        )
    yield from _table(
        [
            "tokens",
            "state, GiB in L1",
            "paper: whole plan, GiB",
            "paper: W = 32, MiB",
            "here: W = 32, MiB",
            "here: seconds",
        ],
        rows,
    )


def _own(row: Row | None, figure: str) -> Value:
    if row is None:
        return "not run"
    return row.figures[figure] if row.accepted else "rejected"


def _experiment(evidence: Evidence, experiment: str) -> Iterator[str]:
    rows = evidence.of(experiment)
    if not rows:
        return
    yield f"<h2>{escape(experiment)}</h2>"
    for caption, picture in pictures(evidence, experiment):
        data = base64.b64encode(picture).decode()
        yield (
            f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    for names, group in _by_figures(rows):
        yield from _table(
            ["row", "source", *names, "verdict"],
            [[row.name, row.source, *row.figures.values(), _verdict(row)] for row in group],
        )


def _by_figures(rows: Iterable[Row]) -> list[tuple[tuple[str, ...], list[Row]]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.figures), []).append(row)
    return list(groups.items())


def _verdict(row: Row) -> str:
    if row.accepted:
        runs = len(row.observations)
        return f"accepted, {runs} restore{'' if runs == 1 else 's'} checked" if runs else "measured"
    return "REJECTED: " + ", ".join(dict.fromkeys(each.check for each in row.rejections))


def _table(head: Sequence[str], rows: Iterable[Sequence[Value]]) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(_cell(each) for each in row) + "</tr>"
    yield "</table>"


def _cell(value: Value) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    if isinstance(value, float):
        return f'<td class="n">{value:,.2f}</td>' if value >= 100 else _small(value)
    bad = ' class="bad"' if value.startswith(("REJECTED", "rejected")) or value == "no" else ""
    return f"<td{bad}>{escape(value)}</td>"


def _small(value: float) -> str:
    return f'<td class="n">{value:.4g}</td>'
