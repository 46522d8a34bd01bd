import shutil
from pathlib import Path

import pytest

from patchqueue.errors import QueueError
from patchqueue.hooks import upstream_config
from patchqueue.layout import Layout
from patchqueue.lint import RULES, lint
from patchqueue.patch import Patch

FIXTURES = Path(__file__).parent / "fixtures" / "lint"


def broken(path: Path) -> set[str]:
    patch = Patch.parse(path.read_bytes())
    return {name for name, rule in RULES.items() if rule(patch)}


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.pass.patch")), ids=lambda path: path.name)
def test_a_passing_fixture_breaks_no_rule(path: Path) -> None:
    assert broken(path) == set()


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.fail.patch")), ids=lambda path: path.name)
def test_a_failing_fixture_breaks_its_rule_only(path: Path) -> None:
    assert broken(path) == {path.name.split(".")[0]}


def test_every_rule_has_both_fixtures() -> None:
    for kind in ("pass", "fail"):
        assert {path.name.split(".")[0] for path in FIXTURES.glob(f"*.{kind}.patch")} == set(RULES)


def test_a_clean_queue_passes(queue: Layout) -> None:
    lint(queue)


def test_a_broken_header_is_named(queue: Layout) -> None:
    path = queue.patches / "lmcache/first-fix.patch"
    path.write_text(path.read_text().replace("Upstream-Status: Pending", "Upstream-Status: Soon"))
    with pytest.raises(QueueError, match=r"first-fix\.patch: .*'Upstream-Status: Soon' must be"):
        lint(queue)


HAND_EDITS = {
    "a changed line": ("+line_30 = -30\n", "+line_30 = -31\n"),
    "an offset": ("@@ -27,7 +27,7 @@", "@@ -26,7 +26,7 @@"),
    "a changed function context": ("@@ line_26 = 26\n", "@@ line_2 = 2\n"),
    "a short blob id": ("index ", "index x"),
}


@pytest.mark.parametrize("edit", HAND_EDITS)
def test_a_hand_edited_patch_is_named(queue: Layout, edit: str) -> None:
    path = queue.patches / "lmcache/second-fix.patch"
    text = path.read_text()
    old, new = HAND_EDITS[edit]
    if edit == "a short blob id":
        line = next(line for line in text.splitlines() if line.startswith("index "))
        ids = line.split()[1].split("..")
        new, old = f"index {ids[0][:9]}..{ids[1][:9]} 100644", line
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(QueueError, match=r"patches/lmcache/second-fix\.patch: the file is not"):
        lint(queue)


NEW_TEST = """diff --git a/tests/test_second.py b/tests/test_second.py
new file mode 100644
index 0000000000000000000000000000000000000000..7d4290a117a4ddcc11daae7ea675841033830c8f
--- /dev/null
+++ b/tests/test_second.py
@@ -0,0 +1 @@
+x = 1
"""


def test_a_patch_that_another_change_moved_is_named(queue: Layout) -> None:
    """Context that still applies, at an offset, is not what export writes."""
    series = queue.series.read_text().replace("lmcache/first-fix.patch\n", "")
    first = (queue.patches / "lmcache/first-fix.patch").read_text()
    (queue.patches / "lmcache/first-fix.patch").unlink()
    second = queue.patches / "lmcache/second-fix.patch"
    source_only = second.read_text().partition("diff --git a/tests/")[0]
    second.write_text(source_only.replace("test_lmcache.py", "test_second.py") + NEW_TEST)
    queue.series.write_text(series)
    assert first
    moved = second.read_text().replace("@@ -27,7 +27,7 @@", "@@ -28,7 +28,7 @@")
    second.write_text(moved)
    shutil.rmtree(queue.root / "work")
    with pytest.raises(QueueError, match=r"second-fix\.patch: the file is not"):
        lint(queue)


@pytest.mark.parametrize("name", ["vllm/engine-fix.patch.orig", "sglang/x.patch", "top.patch"])
def test_a_stale_file_is_named(queue: Layout, name: str) -> None:
    path = queue.patches / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("stale\n")
    with pytest.raises(QueueError, match=f"patches/{name}: no line of series names this file"):
        lint(queue)


def test_carriage_returns_in_series_are_named(queue: Layout) -> None:
    queue.series.write_bytes(queue.series.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(QueueError, match="without a carriage return"):
        lint(queue)


@pytest.mark.parametrize("stray", [True, False])
def test_files_and_entries_must_match(queue: Layout, stray: bool) -> None:
    path = queue.patches / "vllm/engine-fix.patch"
    path.rename(path.with_name("stray.patch")) if stray else path.unlink()
    with pytest.raises(
        QueueError, match=r"stray\.patch is in no line" if stray else "no such file"
    ):
        lint(queue)


CONFIG = """
default_install_hook_types: [commit-msg]
repos:
- repo: https://github.com/astral-sh/ruff-pre-commit
  rev: v0.11.7
  hooks:
  - id: ruff
    args: [--fix]
- repo: https://github.com/pre-commit/mirrors-mypy
  rev: v1.17.1
  hooks:
  - id: mypy
    language_version: python3.12
    additional_dependencies: [msgspec]
- repo: https://github.com/rhysd/actionlint
  rev: v1.7.7
  hooks: [{id: actionlint}]
- repo: local
  hooks:
  - {id: spdx, entry: python tools/spdx.py, language: python}
  - {id: docker, entry: x, language: system, files: ^docker/}
  - {id: suggestion, entry: x, language: system}
"""


def test_upstreams_versions_become_local_hooks() -> None:
    config = upstream_config(CONFIG, ["lmcache/core.py"])
    (repo,) = config["repos"]
    hooks = {hook["id"]: hook for hook in repo["hooks"]}
    assert repo["repo"] == "local"
    assert list(hooks) == ["ruff", "mypy", "spdx"]
    assert hooks["ruff"]["additional_dependencies"] == ["ruff==0.11.7"]
    assert hooks["ruff"]["args"] == ["--fix"]
    assert hooks["mypy"]["additional_dependencies"] == ["mypy==1.17.1", "msgspec"]
    assert "language_version" not in hooks["mypy"]


def test_an_unknown_hook_is_named() -> None:
    with pytest.raises(QueueError, match=r"'black' from 'black'.*patchqueue/hooks\.py"):
        upstream_config("repos: [{repo: x/black, rev: '1', hooks: [{id: black}]}]", ["a.py"])


def test_upstreams_checks_stop_a_bad_patch(queue: Layout) -> None:
    """A real hook of upstream's, run by pre-commit over the patched files only."""
    from tests.queue.synthetic import commit, save

    hooks = (
        "repos:\n- repo: local\n  hooks:\n  - id: no-shouting\n    name: no shouting\n"
        "    language: pygrep\n    entry: SHOUT\n    types: [python]\n"
    )
    tree = queue.worktree("lmcache")
    commit(tree, "[Core] Hooks", {".pre-commit-config.yaml": hooks}, "lmcache")
    (tree / "tests/test_lmcache.py").write_text("x = 'SHOUT'\n")
    from patchqueue import git

    git.output(tree, "commit", "--all", "--amend", "--no-edit")
    save(queue)
    with pytest.raises(QueueError, match="work/lmcache: upstream's own checks object"):
        lint(queue)
