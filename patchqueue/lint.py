"""What must be true of `series` and of every patch."""

import difflib
import re
from collections.abc import Callable

from patchqueue.apply import apply
from patchqueue.errors import QueueError
from patchqueue.hooks import run_upstream_hooks
from patchqueue.layout import TREES, Layout
from patchqueue.patch import Patch
from patchqueue.series import Series
from patchqueue.status import guards
from patchqueue.worktree import WorkTree, formatted, read_patches

_STATUS = re.compile(r"Pending|Submitted \[.+\]|Backport \[.+\]|Denied \[.+\]|Inappropriate \[.+\]")


def _subject_length(patch: Patch) -> str | None:
    if len(patch.subject) <= 72:
        return None
    return f"the subject has {len(patch.subject)} characters; 72 at most"


def _subject_tags(patch: Patch) -> str | None:
    if re.match(r"(\[[A-Za-z0-9 /_-]+\])+ \S", patch.subject):
        return None
    return "the subject begins with no tag of upstream's, as in '[Core][MP] Add ...'"


def _author(patch: Patch) -> str | None:
    if re.fullmatch(r"[^<>]+ <[^<>\s]+@[^<>\s]+>", patch.author):
        return None
    return f"'From: {patch.author}' is not a name and an <address>"


def _date(patch: Patch) -> str | None:
    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", patch.date):
        return None
    return f"'Date: {patch.date}' is not written as 2026-01-31 12:00:00 +0000"


def _reason(patch: Patch) -> str | None:
    if patch.body.startswith("Why: "):
        return None
    return "the body does not begin with 'Why: ', saying what fails without the patch"


def _tests(patch: Patch) -> str | None:
    listed = [name.strip() for name in (patch.trailer("Tests") or "").split(",")]
    missing = [name for name in listed if name not in patch.touched()]
    if not missing:
        return None
    if not listed[0]:
        return "'Tests: ' must name the test files of the patch, separated by commas"
    return f"'Tests:' names {missing[0]}, which the patch does not change"


def _guard(patch: Patch) -> str | None:
    if _tests(patch) or guards(patch):
        return None
    return "no test guards the patch: 'Tests:' names no test_*.py to which it adds lines"


def _removal(patch: Patch) -> str | None:
    if patch.trailer("Remove when"):
        return None
    return "'Remove when: ' must say when the patch can go"


def _upstream_status(patch: Patch) -> str | None:
    status = patch.trailer("Upstream-Status")
    if status and _STATUS.fullmatch(status):
        return None
    return (
        f"'Upstream-Status: {status or ''}' must be Pending, Submitted [where], "
        "Backport [where], Denied [where] or Inappropriate [why]"
    )


def _sign_off(patch: Patch) -> str | None:
    if f"Signed-off-by: {patch.author}" not in patch.body:
        return None
    return "'Signed-off-by:' is for the person who submits the patch, not for the queue"


RULES: dict[str, Callable[[Patch], str | None]] = {
    "subject-length": _subject_length,
    "subject-tags": _subject_tags,
    "author": _author,
    "date": _date,
    "reason": _reason,
    "tests": _tests,
    "guard": _guard,
    "removal": _removal,
    "upstream-status": _upstream_status,
    "sign-off": _sign_off,
}


def lint(layout: Layout) -> None:
    """Check everything; the first tree with a fault ends it.

    Raises:
        QueueError: the message lists every fault found at that step.
    """
    faults = [fault for tree in TREES for fault in header_faults(layout, tree)]
    _raise(faults + file_faults(layout))
    trees = apply(layout)
    _raise([fault for tree in trees for fault in byte_faults(tree)])
    for tree in trees:
        run_upstream_hooks(tree, layout.cache)


def header_faults(layout: Layout, tree: str) -> list[str]:
    """Every broken rule, as `path: what is wrong`."""
    patches = read_patches(layout, tree)
    return [
        f"patches/{tree}/{name}.patch: {fault} [{rule}]"
        for name, patch in patches.items()
        for rule, broken in RULES.items()
        if (fault := broken(patch))
    ]


def file_faults(layout: Layout) -> list[str]:
    """Every file in `patches/` that is no patch, and a `series` in another form than export's."""
    series = Series.read(layout.series)
    listed = {layout.patches / entry for entry in series.entries()}
    found = {path for path in layout.patches.rglob("*") if path.is_file()}
    faults = [
        f"{path.relative_to(layout.root)}: no line of series names this file; delete it"
        for path in sorted(found - listed)
        if path.name != ".gitkeep"
    ]
    if layout.series.read_bytes() != series.format():
        faults.append("series: lines must end with one newline, without a carriage return")
    return faults


def byte_faults(tree: WorkTree) -> list[str]:
    """Every patch file that is not what its own application exports."""
    faults = []
    for name, wanted in formatted(tree.stack()).items():
        path = tree.layout.patches / tree.pin.name / f"{name}.patch"
        if path.read_bytes() != wanted:
            faults.append(
                f"{path.relative_to(tree.layout.root)}: the file is not what `nox -s export` "
                "writes (edited by hand, or its context has moved); that command rewrites it:\n"
                + _diff(path.read_bytes(), wanted)
            )
    return faults


def _diff(found: bytes, wanted: bytes) -> str:
    before, after = (data.decode(errors="replace").splitlines() for data in (found, wanted))
    diff = difflib.unified_diff(before, after, "the file", "exported", lineterm="", n=0)
    return "\n".join(f"  {line}" for line in list(diff)[:12])


def _raise(faults: list[str]) -> None:
    if faults:
        raise QueueError("\n".join(faults))
