"""A rebase in Markdown: one line per patch, then the conflicts."""

from collections import Counter

from patchqueue.progress import SKIPPED, Clash, Progress, Step

_MOST = 60  # lines of one hunk


def report(progress: Progress) -> str:
    """The whole report."""
    lines = [f"# Rebase: {progress.title}", "", *_lacking(progress), *table(progress), ""]
    for step in progress.steps:
        if step.clashes or "\n" in step.tests:
            lines += _section(step)
    return "\n".join(lines).rstrip() + "\n"


def table(progress: Progress) -> list[str]:
    """One line per patch."""
    lines = ["| patch | outcome | conflicts | its tests |", "|---|---|---|---|"]
    for step in progress.steps:
        tests = step.tests.split("\n")[0] or "not run"
        lines.append(f"| {step.entry} | {step.outcome} | {len(step.clashes) or ''} | {tests} |")
    return lines


def summary(progress: Progress) -> str:
    """How many patches had which outcome."""
    counts = Counter(step.outcome for step in progress.steps)
    return "; ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no patches"


def next_steps(progress: Progress) -> list[str]:
    """Where the rebase stands and what to type, in words."""
    if conflict := progress.conflict:
        return [
            f"patches/{conflict.entry} is in conflict: resolve it in work/rebase/work/"
            f"{conflict.tree}, `git add --all` there, then `nox -s rebase -- --continue`"
        ]
    if len(progress.steps) < progress.wanted:
        return ["not finished: `nox -s rebase -- --continue`"]
    shown = "the report is work/rebase/report.md, the rebased trees are work/rebase/work."
    if any(step.outcome == SKIPPED for step in progress.steps):
        return [
            f"finished, but for what --skip left out: {shown}",
            "`nox -s rebase -- --lint` and `-- --tests` check them; this cannot be accepted,",
            "`-- --abort` ends it",
        ]
    return [
        f"finished: {shown}",
        "`nox -s rebase -- --lint` and `-- --tests` check them; `-- --accept` commits them with",
        "the new pins, `-- --abort` drops them",
    ]


def _lacking(progress: Progress) -> list[str]:
    if not progress.lacking:
        return []
    listed = [f"- {words}" for words in progress.lacking]
    return ["The package index does not have, so that `--accept` would refuse:", "", *listed, ""]


def _section(step: Step) -> list[str]:
    lines = [f"## {step.entry}: {step.outcome}", ""]
    for clash in step.clashes:
        lines += _clash(clash)
    if "\n" in step.tests:
        lines += ["Its tests:", "", "```text", *step.tests.split("\n")[1:], "```", ""]
    return lines


def _clash(clash: Clash) -> list[str]:
    if clash.line is None:
        return [f"`{clash.file}`: {clash.text}", ""]
    hunk = clash.text.split("\n")
    if len(hunk) > _MOST:
        hunk = [*hunk[:_MOST], f"... and {len(hunk) - _MOST} more lines"]
    return [f"`{clash.file}`, line {clash.line}:", "", "````text", *hunk, "````", ""]
