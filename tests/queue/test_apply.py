import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patchqueue import git
from patchqueue.apply import apply
from patchqueue.errors import QueueError
from patchqueue.export import export
from patchqueue.layout import Layout
from patchqueue.pins import Pins
from patchqueue.worktree import BASE, SAVED, WorkTree
from tests.queue.conftest import hide_stgit, need_stgit
from tests.queue.index import Index
from tests.queue.synthetic import change, snapshot


def subjects(layout: Layout, tree: str) -> list[str]:
    return git.text(layout.worktree(tree), "log", "--format=%s", f"{BASE}..HEAD").splitlines()


def test_a_work_tree_is_the_base_and_the_series(queue: Layout, route: str) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    assert subjects(queue, "lmcache") == ["[Core] Second fix", "[Core] First fix"]
    assert subjects(queue, "vllm") == ["[Core] Engine fix"]
    assert "line_30 = -30" in (queue.worktree("lmcache") / "lmcache/core.py").read_text()
    stack = WorkTree(queue, Pins.read(queue.pins).trees["lmcache"]).stgit_names()
    assert stack == (["first-fix", "second-fix"] if route == "stgit" else None)


def test_applying_again_changes_nothing(queue: Layout, index: Index) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    index.requests.clear()
    files = [queue.worktree("vllm") / name for name in ("vllm/core.py", ".git/HEAD")]
    before = [file.stat().st_mtime_ns for file in files]
    apply(queue)
    assert [file.stat().st_mtime_ns for file in files] == before
    assert index.requests == []


def test_commits_are_the_same_on_every_machine(
    queue: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    first = git.text(queue.worktree("lmcache"), "rev-parse", "HEAD")
    (tmp_path / ".gitconfig").write_text(
        "[user]\nname = Somebody\nemail = else@where\n[core]\nautocrlf = true\nabbrev = 7\n"
        "[diff]\nnoprefix = true\nalgorithm = patience\n"
        "[commit]\ngpgSign = true\n[am]\nthreeWay = true\n"
    )
    for name, value in {"HOME": str(tmp_path), "TZ": "Asia/Tokyo", "LC_ALL": "tr_TR.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    shutil.rmtree(queue.root / "work")
    apply(queue)
    assert git.text(queue.worktree("lmcache"), "rev-parse", "HEAD") == first
    before = snapshot(queue)
    assert export(queue) == []
    assert snapshot(queue) == before


@pytest.mark.parametrize("work", ["edit", "new file", "commit", "amended commit"])
def test_unsaved_work_is_not_overwritten(queue: Layout, work: str, route: str) -> None:
    tree = queue.worktree("lmcache")
    (queue.patches / "lmcache/second-fix.patch").unlink()
    queue.series.write_text(queue.series.read_text().replace("lmcache/second-fix.patch\n", ""))
    core = tree / "lmcache/core.py"
    if work == "commit":
        change(queue, "lmcache", "[Core] Third fix", 20)
    elif work == "new file":
        core = tree / "lmcache/new.py"
        core.write_text("new\n")
    else:
        core.write_text(core.read_text().replace("line_20 = 20", "line_20 = 2000"))
    if work == "amended commit":
        git.output(tree, "commit", "--all", "--amend", "--no-edit")
    before, head = core.read_text(), git.text(tree, "rev-parse", "HEAD")
    with pytest.raises(QueueError, match=r"(?s)work/lmcache holds .*To keep it: .*nox -s export"):
        apply(queue)
    assert (core.read_text(), git.text(tree, "rev-parse", "HEAD")) == (before, head)


def test_new_patches_reach_a_saved_work_tree(queue: Layout, tmp_path: Path, route: str) -> None:
    apply(queue)
    path = queue.patches / "lmcache/second-fix.patch"
    shutil.copy(path, tmp_path)
    series = queue.series.read_text()
    path.unlink()
    queue.series.write_text(series.replace("lmcache/second-fix.patch\n", ""))
    # As if another had committed that removal: the work tree was saved before it.
    apply(queue)
    assert subjects(queue, "lmcache") == ["[Core] First fix"]
    shutil.copy(tmp_path / path.name, path)
    queue.series.write_text(series)
    apply(queue)
    assert subjects(queue, "lmcache") == ["[Core] Second fix", "[Core] First fix"]


@pytest.fixture
def broken(queue: Layout) -> Path:
    """Make vllm's patch expect another line than upstream has; return its file."""
    path = queue.patches / "vllm/engine-fix.patch"
    path.write_text(path.read_text().replace("-line_7 = 7\n", "-line_7 = 77\n"))
    shutil.rmtree(queue.root / "work")
    return path


def test_a_patch_that_does_not_apply_is_named_with_its_reject(queue: Layout, broken: Path) -> None:
    with pytest.raises(QueueError) as error:
        apply(queue)
    message = str(error.value)
    assert message.startswith(f"patches/vllm/{broken.name} does not apply to vllm 0.32.0")
    assert "error: patch failed: vllm/core.py:4" in message
    assert "\n-line_7 = 77\n+line_7 = -7\n" in message
    assert "git am --continue" in message


def test_the_printed_commands_repair_the_patch(queue: Layout, broken: Path, route: str) -> None:
    with pytest.raises(QueueError) as error:
        apply(queue)
    commands = [line.partition("   #")[0].strip() for line in str(error.value).splitlines()]
    reject = next(line for line in commands if line.startswith("git apply --reject"))
    tree = queue.worktree("vllm")
    assert git.run(tree, *reject.split()[1:]).returncode == 1
    core = tree / "vllm/core.py"
    core.with_name("core.py.rej").unlink()
    core.write_text(core.read_text().replace("line_7 = 7\n", "line_7 = -7\n"))
    assert "git add --all && git am --continue" in commands
    git.output(tree, "add", "--all")
    git.output(tree, "am", "--continue")
    assert export(queue) == ["patches/vllm/engine-fix.patch"]
    assert "-line_7 = 7\n" in broken.read_text()
    apply(queue)
    assert subjects(queue, "vllm") == ["[Core] Engine fix"]


def test_after_a_failure_a_mended_file_is_applied(queue: Layout, broken: Path) -> None:
    with pytest.raises(QueueError, match="does not apply"):
        apply(queue)
    broken.write_text(broken.read_text().replace("-line_7 = 77\n", "-line_7 = 7\n"))
    apply(queue)
    assert subjects(queue, "vllm") == ["[Core] Engine fix"]


def test_another_tree_than_the_pinned_one_is_refused(queue: Layout) -> None:
    shutil.rmtree(queue.root / "work")
    pins = queue.pins.read_text().replace('tree = "', 'tree = "0', 1)
    queue.pins.write_text(pins)
    with pytest.raises(QueueError, match=r"lmcache-0\.5\.6\.tar\.gz unpacks to the git tree"):
        apply(queue)


def test_an_entry_without_a_file(queue: Layout) -> None:
    (queue.patches / "vllm/engine-fix.patch").unlink()
    with pytest.raises(QueueError, match=r"series lists vllm/engine-fix\.patch, but there is no"):
        apply(queue)


def test_a_file_without_an_entry(queue: Layout) -> None:
    shutil.copy(queue.patches / "vllm/engine-fix.patch", queue.patches / "vllm/stray.patch")
    with pytest.raises(QueueError, match=r"vllm/stray\.patch is in no line of series"):
        apply(queue)


def new_upstream_text(layout: Layout) -> None:
    """Change patches/, as a `git pull` would."""
    path = layout.patches / "lmcache/first-fix.patch"
    path.write_text(path.read_text().replace("constant is wrong", "constant is still wrong"))


def hide_work_by_popping(layout: Layout) -> None:
    need_stgit()
    change(layout, "lmcache", "[Core] Precious", 20)
    git.output(layout.worktree("lmcache"), "repair", program="stg")
    git.output(layout.worktree("lmcache"), "pop", program="stg")


def hide_work_in_a_rebase(layout: Layout) -> None:
    change(layout, "lmcache", "[Core] Precious", 20)
    tree = layout.worktree("lmcache")
    editor = {"GIT_SEQUENCE_EDITOR": "sed -i '2s/^pick/edit/'"}
    git.output(tree, "rebase", "--interactive", BASE, extra_env=editor)


def hide_work_on_main(layout: Layout) -> None:
    change(layout, "lmcache", "[Core] Precious", 20)
    git.output(layout.worktree("lmcache"), "checkout", "--quiet", SAVED)


def hide_work_on_an_unborn_branch(layout: Layout) -> None:
    git.output(layout.worktree("lmcache"), "checkout", "--quiet", "--orphan", "new")
    (layout.worktree("lmcache") / "lmcache/core.py").write_text("precious\n")


def hide_work_outside_git(layout: Layout) -> None:
    shutil.rmtree(layout.worktree("lmcache") / ".git")


@pytest.mark.parametrize(
    "hide",
    [
        hide_work_by_popping,
        hide_work_in_a_rebase,
        hide_work_on_main,
        hide_work_on_an_unborn_branch,
        hide_work_outside_git,
    ],
)
def test_work_that_head_does_not_show_is_not_overwritten(
    queue: Layout, hide: Callable[[Layout], None]
) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    hide(queue)
    new_upstream_text(queue)
    with pytest.raises(QueueError, match=r"work/lmcache holds "):
        apply(queue)


def test_a_tree_made_without_stgit_is_handed_over_later(
    queue: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_stgit()
    shutil.rmtree(queue.root / "work")
    with monkeypatch.context() as without:
        hide_stgit(tmp_path, without)
        trees = apply(queue)
    assert trees[0].stgit_names() is None
    assert apply(queue)[0].stgit_names() == ["first-fix", "second-fix"]


def test_another_branch_of_the_user_stays(queue: Layout) -> None:
    shutil.rmtree(queue.root / "work")
    apply(queue)
    tree = queue.worktree("lmcache")
    git.output(tree, "branch", "feature")
    git.output(tree, "checkout", "--quiet", "feature")
    feature = git.text(tree, "rev-parse", "HEAD")
    new_upstream_text(queue)
    apply(queue)
    assert git.text(tree, "rev-parse", "feature") == feature
    assert git.text(tree, "symbolic-ref", "--short", "HEAD") == "main"
