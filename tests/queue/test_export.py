import shutil
from pathlib import Path

import pytest

from patchqueue import git
from patchqueue.apply import apply
from patchqueue.errors import QueueError
from patchqueue.export import export
from patchqueue.layout import Layout
from patchqueue.worktree import BASE
from tests.queue.conftest import hide_stgit, need_stgit
from tests.queue.synthetic import change, commit, snapshot


def stg(layout: Layout, *args: str) -> None:
    need_stgit()
    git.output(layout.worktree("lmcache"), *args, program="stg")


def test_export_after_apply_writes_the_same_bytes(queue: Layout, route: str) -> None:
    before = snapshot(queue)
    shutil.rmtree(queue.root / "work")
    apply(queue)
    for path in (queue.patches).rglob("*.patch"):
        path.write_bytes(path.read_bytes())
    assert export(queue) == []
    assert snapshot(queue) == before


def amend_with_stgit(layout: Layout) -> None:
    """Change the first of two patches, as docs/patches.md says to with StGit."""
    stg(layout, "goto", "first-fix")
    edit(layout, "line_5 = -5", "line_5 = -55")
    stg(layout, "refresh")
    stg(layout, "push", "--all")


def amend_with_git(layout: Layout) -> None:
    """The same, as docs/patches.md says to without StGit."""
    tree = layout.worktree("lmcache")
    edit(layout, "line_5 = -5", "line_5 = -55")
    git.output(tree, "commit", "--all", "--fixup", "HEAD~1")
    rebase = ("rebase", "--quiet", "--interactive", "--autosquash", BASE)
    git.output(tree, *rebase, extra_env={"GIT_SEQUENCE_EDITOR": "true"})


def edit(layout: Layout, old: str, new: str) -> None:
    core = layout.worktree("lmcache") / "lmcache/core.py"
    core.write_text(core.read_text().replace(old, new))


def test_both_routes_write_identical_bytes(
    queue: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(queue)
    results = []
    for amend in (amend_with_stgit, amend_with_git):
        if amend is amend_with_git:
            hide_stgit(tmp_path, monkeypatch)
        restore(queue, before)
        shutil.rmtree(queue.root / "work")
        apply(queue)
        amend(queue)
        # The second patch has the first one's blob ids in its index lines.
        assert export(queue) == [
            "patches/lmcache/first-fix.patch",
            "patches/lmcache/second-fix.patch",
        ]
        results.append(snapshot(queue))
    assert results[0] == results[1] != before


def restore(layout: Layout, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (layout.root / name).write_bytes(data)


def test_a_new_commit_becomes_a_patch_after_its_predecessor(queue: Layout, route: str) -> None:
    apply(queue)
    change(queue, "lmcache", "[Core][MP] Third fix: it's better", 20)
    assert export(queue) == ["patches/lmcache/third-fix-it-s-better.patch", "series"]
    assert queue.series.read_text() == (
        "# Fixes\nlmcache/first-fix.patch\nlmcache/second-fix.patch\n"
        "lmcache/third-fix-it-s-better.patch\nvllm/engine-fix.patch\n"
    )


def test_a_dropped_commit_takes_its_file_along(queue: Layout, route: str) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    if route == "stgit":
        stg(queue, "delete", "second-fix")
    else:
        git.output(queue.worktree("lmcache"), "reset", "--quiet", "--hard", "HEAD~1")
    assert export(queue) == ["patches/lmcache/second-fix.patch", "series"]
    assert "second-fix" not in queue.series.read_text()
    assert not (queue.patches / "lmcache/second-fix.patch").exists()


def test_a_reworded_commit_keeps_its_name(queue: Layout, route: str) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    message = git.text(queue.worktree("lmcache"), "log", "-1", "--format=%B").replace(
        "Second", "2nd"
    )
    if route == "stgit":
        stg(queue, "edit", "-m", message)
    else:
        git.output(queue.worktree("lmcache"), "commit", "--amend", "--quiet", "-m", message)
    assert export(queue) == ["patches/lmcache/second-fix.patch"]


def test_a_renamed_stgit_patch_renames_the_file(queue: Layout) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    stg(queue, "rename", "second-fix", "last-fix")
    export(queue)
    assert "lmcache/last-fix.patch" in queue.series.read_text()
    assert not (queue.patches / "lmcache/second-fix.patch").exists()


def test_an_unapplied_patch_is_refused(queue: Layout) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    before = snapshot(queue)
    stg(queue, "pop")
    with pytest.raises(QueueError, match="second-fix not applied"):
        export(queue)
    assert snapshot(queue) == before


@pytest.mark.parametrize("tree", ["lmcache", "vllm"])
def test_a_dirty_tree_is_refused(queue: Layout, tree: str) -> None:
    before = snapshot(queue)
    change(queue, "lmcache", "[Core] Third fix", 20)
    (queue.worktree(tree) / "README.md").write_text("dirty\n")
    with pytest.raises(QueueError, match=rf"work/{tree} has changes that no commit holds"):
        export(queue)
    assert snapshot(queue) == before


def test_a_rebase_half_way_is_refused(queue: Layout) -> None:
    git.run(queue.worktree("lmcache"), "rebase", "--exec", "false", BASE)
    with pytest.raises(QueueError, match=r"a git rebase is half-way.*rebase --continue"):
        export(queue)


def test_a_merge_is_refused(queue: Layout) -> None:
    tree = queue.worktree("lmcache")
    git.output(tree, "checkout", "--quiet", "-b", "side", BASE)
    commit(tree, "[Core] Side", {"new.py": "x\n"}, "lmcache")
    git.output(tree, "checkout", "--quiet", "main")
    git.output(tree, "merge", "--quiet", "--no-edit", "side")
    with pytest.raises(QueueError, match="is a merge"):
        export(queue)


def test_an_empty_commit_is_refused(queue: Layout) -> None:
    git.output(queue.worktree("lmcache"), "commit", "--allow-empty", "-m", "[Core] Nothing")
    with pytest.raises(QueueError, match=r"'.Core. Nothing' changes nothing"):
        export(queue)


def test_two_commits_of_one_name_are_refused(queue: Layout) -> None:
    change(queue, "lmcache", "[Core] Third fix", 20)
    change(queue, "lmcache", "[MP] Third fix", 21)
    with pytest.raises(QueueError, match=r"two commits would both be third-fix\.patch"):
        export(queue)


def test_another_history_is_refused(queue: Layout) -> None:
    git.output(queue.worktree("lmcache"), "checkout", "--quiet", "--orphan", "else")
    git.output(queue.worktree("lmcache"), "commit", "--quiet", "-m", "else")
    with pytest.raises(QueueError, match=r"does not descend from lmcache 0\.5\.6"):
        export(queue)


def test_a_missing_work_tree_is_refused(queue: Layout) -> None:
    shutil.rmtree(queue.worktree("vllm"))
    with pytest.raises(QueueError, match=r"work/vllm is not a work tree .*`nox -s apply`"):
        export(queue)


def test_odd_content_survives(queue: Layout) -> None:
    files = {"crlf.txt": "a\r\nb\r\n", "no-newline": "x", "tab\tname": "y\n", "spaces ": " \n\t\n"}
    change(queue, "lmcache", "[Core] Odd content", 20)
    tree = queue.worktree("lmcache")
    for name, text in files.items():
        (tree / name).write_bytes(text.encode())
    (tree / "binary").write_bytes(bytes(range(256)))
    git.output(tree, "add", "--all")
    git.output(tree, "commit", "--amend", "--no-edit", "--author", "Ünï <u@n.i>")
    export(queue)
    before = snapshot(queue)
    shutil.rmtree(queue.root / "work")
    apply(queue)
    assert {name: (tree / name).read_bytes().decode() for name in files} == files
    assert (tree / "binary").read_bytes() == bytes(range(256))
    assert export(queue) == []
    assert snapshot(queue) == before


def test_a_patch_that_was_never_applied_here_is_not_deleted(queue: Layout) -> None:
    path = queue.patches / "vllm/friend.patch"
    shutil.copy(queue.patches / "vllm/engine-fix.patch", path)
    queue.series.write_text(queue.series.read_text() + "vllm/friend.patch\n")
    before = snapshot(queue)
    with pytest.raises(QueueError, match="has changed since work/vllm was made from it"):
        export(queue)
    assert snapshot(queue) == before


@pytest.mark.parametrize("line", ["---", "diff --git a/x b/x", "Index: x"])
def test_a_message_that_git_am_would_cut_is_refused(queue: Layout, line: str) -> None:
    tree = queue.worktree("vllm")
    message = git.text(tree, "log", "-1", "--format=%B").replace("Remove when", f"{line}\n\nRemove")
    git.output(tree, "commit", "--quiet", "--amend", "-m", message)
    before = snapshot(queue)
    with pytest.raises(QueueError, match="reads as the start of its diff"):
        export(queue)
    assert snapshot(queue) == before


def test_a_commit_made_beside_stgit_is_not_taken_for_another_patch(queue: Layout) -> None:
    need_stgit()
    shutil.rmtree(queue.root / "work")
    apply(queue)
    git.output(queue.worktree("lmcache"), "reset", "--quiet", "--hard", "HEAD~1")
    change(queue, "lmcache", "[Core] Wholly new", 20)
    export(queue)
    assert "lmcache/wholly-new.patch" in queue.series.read_text()
    assert "second-fix" not in queue.series.read_text()
