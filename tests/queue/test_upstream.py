"""A patch prepared for its upstream; nothing is ever sent."""

import subprocess
from pathlib import Path

import pytest

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.layout import Layout
from patchqueue.patch import Patch
from patchqueue.pull_request import Facts, description, message
from patchqueue.upstream import Wish, overview, prepare
from patchqueue.upstream_rules import missing
from tests.queue import synthetic

BODY = """Why: the constant is wrong.

The patch mends it, and
leaves the others alone.

Tests: tests/v1/core/test_a.py,
  tests/v1/core/test_b.py

Remove when: the pinned vLLM has this change.

Upstream-Status: Pending"""


def section(file: str, *added: str, new: bool = False) -> str:
    mode = "new file mode 100644\n" if new else ""
    lines = "".join(f"+{line}\n" for line in added)
    return f"diff --git a/{file} b/{file}\n{mode}--- a/{file}\n+++ b/{file}\n@@ -0,0 +1 @@\n{lines}"


TESTS = section("tests/v1/core/test_a.py", "x = 1") + section("tests/v1/core/test_b.py", "x = 1")


def patch(diff: str = "", subject: str = "[Bugfix][Core] Mend it", body: str = BODY) -> Patch:
    return Patch(subject, "a <a@b>", "2026-01-31 12:00:00 +0000", body, (TESTS + diff).encode())


def vllm_clone(folder: Path, target: str = "v1/core") -> Path:
    areas = folder / ".buildkite/test_areas"
    areas.mkdir(parents=True)
    (areas / "misc.yaml").write_text(
        f"steps:\n- label: x\n  commands:\n  - export A=1\n  - pytest -v -s -m 'x' {target}\n"
    )
    return folder


def lmcache_clone(folder: Path, ignored: str = "tests/disagg") -> Path:
    workflow = folder / ".github/workflows/test.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text(f"run: pytest -m 'not cuda' --ignore={ignored}\n")
    return folder


def test_a_message_holds_no_bookkeeping() -> None:
    assert message(patch()) == (
        "[Bugfix][Core] Mend it\n\nThe constant is wrong.\n\n"
        "The patch mends it, and\nleaves the others alone.\n"
    )


def test_the_rules_pass_a_patch_that_keeps_them(tmp_path: Path) -> None:
    assert missing("vllm", patch(), vllm_clone(tmp_path / "vllm")) == []
    assert missing("lmcache", patch(), lmcache_clone(tmp_path / "lmcache")) == []


def many(count: int) -> str:
    return section("vllm/a.py", *["x = 1"] * count)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (patch(many(251)), "251 lines of source; 250 at most for a bug fix"),
        (patch(many(501), subject="[Feature] Add it"), "501 lines of source; an RFC first"),
        (patch(body=BODY.replace("Pending", "Denied [there]")), "Upstream-Status is Denied"),
        (patch(section("vllm/a.py", "parser.add_argument('--a')")), "no documentation of it"),
        (patch(section("vllm/a.py", "import os", new=True)), "no SPDX line in vllm/a.py"),
    ],
)
def test_a_broken_rule_is_named(broken: Patch, words: str, tmp_path: Path) -> None:
    (fault,) = missing("vllm", broken, vllm_clone(tmp_path))
    assert words in fault


def test_a_feature_may_be_longer_than_a_fix(tmp_path: Path) -> None:
    feature = patch(many(251), subject="[Feature] Add it")
    assert missing("vllm", feature, vllm_clone(tmp_path)) == []


@pytest.mark.parametrize("target", ["v1/other", "v1/core/test_a.py", "v1/co"])
def test_a_test_that_no_ci_step_runs_is_named(tmp_path: Path, target: str) -> None:
    (fault,) = missing("vllm", patch(), vllm_clone(tmp_path, target))
    assert "tests/v1/core/test_b.py" in fault


@pytest.mark.parametrize("target", ["tests/v1/core/", "v1/core/test_*.py"])
def test_ci_steps_are_read_as_pytest_reads_them(tmp_path: Path, target: str) -> None:
    assert missing("vllm", patch(), vllm_clone(tmp_path, target)) == []


def test_a_test_that_lmcaches_ci_ignores_is_named(tmp_path: Path) -> None:
    (fault,) = missing("lmcache", patch(), lmcache_clone(tmp_path, "tests/v1/core/"))
    assert fault.startswith("its CI does not run tests/v1/core/test_a.py")


FACTS = Facts("$ pytest tests/x.py\n1 passed", "all passed", ("[Core] First",), None)


def test_a_description_fills_the_clones_template(tmp_path: Path) -> None:
    template = tmp_path / ".github/PULL_REQUEST_TEMPLATE.md"
    template.parent.mkdir()
    template.write_text(
        "<!-- advice -->\n## Overview\n\n<!-- more\nadvice -->\n\n## Validation\n\n"
        "- [ ] Helping assistance was used during it.\n- [ ] **Design Fit:** mine.\n"
    )
    text = description("vllm", patch(), tmp_path, FACTS)
    assert "advice" not in text
    assert "## Overview\n\nThe constant is wrong.\n\n## Validation\n\n```console\n$ pytest" in text
    assert "1 passed" in text
    assert "- [x] Helping assistance was used during it." in text
    assert "- [ ] **Design Fit:** mine." in text
    assert text.index("## Details") > text.index("Design Fit")
    assert "reviewed by: <nobody yet" in text
    assert "- [Core] First" in text


def test_without_a_template_there_is_one(tmp_path: Path) -> None:
    facts = Facts(FACTS.tests, "all passed", (), "A Person")
    text = description("lmcache", patch(section("docs/a.rst", "a")), tmp_path, facts)
    assert text.startswith("**What this PR does / why we need it**:\n\nThe constant is wrong.")
    assert "- [x] this PR contains unit tests" in text
    assert "- [x] this PR contains user facing changes - docs added" in text
    assert "reviewed by: A Person." in text
    assert "builds on" not in text


def test_a_patch_becomes_a_branch_with_what_it_needs(queue: Layout) -> None:
    told = prepare(queue, Wish("lmcache/second-fix", None, None, tests=True))
    clone = queue.root / "work/upstream/clones/lmcache"
    log = git.text(clone, "log", "--format=%s", "dev..bounded-restore/second-fix").splitlines()
    assert log == ["[Core] Second fix", "[Core] First fix"]
    text = git.text(clone, "log", "--format=%B", "dev..bounded-restore/second-fix")
    assert "The constant is wrong." in text
    assert "Upstream-Status" not in text
    assert "Signed-off-by" not in text
    written = (queue.root / "work/upstream/second-fix/description.md").read_text()
    assert "$ pytest tests/test_lmcache.py\n2 passed" in written
    assert (queue.root / "work/upstream/second-fix/title.txt").read_text() == "[Core] Second fix\n"
    assert "send first: first-fix" in told
    assert "Signed-off-by: of the person who sends it" in told
    assert "Nothing was sent." in told


def clone_of(folder: Path, old: str, new: str) -> Path:
    """A user's clone of vLLM, whose main line has gone on."""
    folder.mkdir()
    git.output(folder, "init", "--quiet")
    files = synthetic.upstream_files("vllm")
    files["vllm/core.py"] = files["vllm/core.py"].replace(old, new)
    synthetic.commit(folder, "main line", files, "vllm")
    (folder / "mine.txt").write_text("work of the user\n")
    return folder


def test_a_given_clone_keeps_its_checkout(queue: Layout, tmp_path: Path) -> None:
    clone = clone_of(tmp_path / "vllm", "line_1 = 1\n", "# A new first line.\nline_1 = 1\n")
    head = git.text(clone, "rev-parse", "HEAD")
    told = prepare(queue, Wish("patches/vllm/engine-fix.patch", clone, "A Person", tests=False))
    assert git.text(clone, "status", "--porcelain", "--branch") == "## main\n?? mine.txt"
    assert git.text(clone, "rev-parse", "HEAD", "bounded-restore/engine-fix^").split() == [head] * 2
    assert "its test wiring cannot be checked" in told
    assert "--reviewer" not in told
    assert "leave --no-tests out" in told


@pytest.mark.parametrize("status", [0, 1])
def test_the_clones_own_checks_run_over_the_patch(
    queue: Layout, tmp_path: Path, status: int
) -> None:
    clone = clone_of(tmp_path / "vllm", "line_1 = 1\n", "line_1 = 1\n")
    hook = f"id: x, name: x, language: system, files: core, entry: sh -c 'exit {status}'"
    config = f"repos:\n- repo: local\n  hooks:\n  - {{{hook}}}\n"
    synthetic.commit(clone, "checks", {".pre-commit-config.yaml": config}, "vllm")
    told = prepare(queue, Wish("engine-fix", clone, None, tests=False))
    assert ("pre-commit objects (above)" in told) == bool(status)
    written = (queue.root / "work/upstream/engine-fix/description.md").read_text()
    assert ("pre-commit: some object" if status else "pre-commit: all passed") in written


def test_tests_that_fail_are_named_before_it_can_be_sent(queue: Layout) -> None:
    wrong = {"vllm/new.py": "x = 1\n", "tests/test_vllm.py": "def test(): assert 0\n"}
    synthetic.commit(queue.worktree("vllm"), "[Core] Wrong", wrong, "vllm")
    synthetic.save(queue)
    told = prepare(queue, Wish("wrong", None, None, tests=True))
    assert "its tests fail there" in told
    written = (queue.root / "work/upstream/wrong/description.md").read_text()
    assert "1 failed" in written


def test_a_main_line_that_conflicts_is_named(queue: Layout, tmp_path: Path) -> None:
    clone = clone_of(tmp_path / "vllm", "line_7 = 7\n", "line_7 = 77\n")
    with pytest.raises(QueueError, match=r"engine-fix conflicts .* in vllm/core\.py"):
        prepare(queue, Wish("engine-fix", clone, None, tests=False))
    assert git.text(clone, "branch", "--list", "bounded-restore/*") == ""
    assert len(git.text(clone, "worktree", "list").splitlines()) == 1


def test_what_a_person_made_of_a_branch_is_kept(queue: Layout, tmp_path: Path) -> None:
    clone, branch = clone_of(tmp_path / "vllm", "", ""), "bounded-restore/engine-fix"
    wish = Wish("engine-fix", clone, None, tests=False)
    prepare(queue, wish)
    prepare(queue, wish)  # nobody has touched it
    git.output(clone, "switch", "--quiet", branch)
    with pytest.raises(QueueError, match=r"is checked out in .*/vllm; `git -C .* --detach`"):
        prepare(queue, wish)
    signed = {"GIT_COMMITTER_NAME": "A Person", "GIT_COMMITTER_EMAIL": "person@example.org"}
    git.output(clone, "commit", "--amend", "--signoff", "--no-edit", extra_env=signed)
    git.output(clone, "switch", "--quiet", "--detach")
    head = git.text(clone, "rev-parse", branch)
    with pytest.raises(QueueError, match=r"a person has made.*--move bounded-restore/engine-fix "):
        prepare(queue, wish)
    assert git.text(clone, "rev-parse", branch) == head


def test_a_folder_that_is_no_clone_of_the_upstream_is_named(queue: Layout, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(QueueError, match=rf"no folder {gone}; `git clone https://github"):
        prepare(queue, Wish("engine-fix", gone, None, tests=False))
    other = tmp_path / "other"
    other.mkdir()
    git.output(other, "init", "--quiet")
    synthetic.commit(other, "main line", synthetic.upstream_files("lmcache"), "lmcache")
    (other / "sub").mkdir()
    for folder in (other, other / "sub"):
        with pytest.raises(QueueError, match=rf"{folder} is no clone of vllm \(https://github"):
            prepare(queue, Wish("engine-fix", folder, None, tests=False))
    assert git.text(other, "branch", "--list", "bounded-restore/*") == ""


def test_an_unknown_patch_is_named(queue: Layout) -> None:
    with pytest.raises(QueueError, match="0 patches are named 'third-fix'"):
        prepare(queue, Wish("third-fix", None, None, tests=False))


def test_the_overview_says_what_is_ready(queue: Layout) -> None:
    rows = {line.split()[0]: line for line in overview(queue).splitlines()}
    assert "first-fix" in rows["lmcache/second-fix"].split("Pending")[1]
    assert "no .buildkite/test_areas in the clone" in rows["vllm/engine-fix"]


def test_names_make_dependencies_that_no_context_shows(queue: Layout) -> None:
    """A patch that calls what an earlier one adds needs it, wherever both stand."""
    tree = queue.worktree("vllm")
    helper = {"vllm/new.py": "def bounded_helper():\n    pass\n", "tests/test_n.py": "x = 1\n"}
    user = {
        "vllm/user.py": "def bounded_user():\n    bounded_helper()\n",
        "tests/test_u.py": "x = 1\n",
    }
    both = {"vllm/both.py": "bounded_user(bounded_helper())\n", "tests/test_b.py": "x = 1\n"}
    synthetic.commit(tree, "[Core] Helper", helper, "vllm")
    synthetic.commit(tree, "[Core] User", user, "vllm")
    synthetic.commit(tree, "[Core] Both", both, "vllm")
    synthetic.save(queue)
    rows = {line.split()[0]: line for line in overview(queue).splitlines()}
    assert rows["vllm/user"].split("Pending")[1].split()[0] == "helper"
    # The table leaves out what a patch that is listed needs itself.
    assert rows["vllm/both"].split("Pending")[1].split()[0] == "user"


def test_helpers_of_tests_make_dependencies(queue: Layout) -> None:
    """A patch whose test calls a helper that an earlier one adds needs that one."""
    tree = queue.worktree("vllm")
    first = {"vllm/a.py": "x = 1\n", "tests/utils.py": "def bounded_step():\n    pass\n"}
    first |= {"tests/test_a.py": "def test_a(): pass\ndef unrelated(): pass\n"}
    uses = "from tests.utils import bounded_step\ndef test_it_well(): bounded_step()\n"
    synthetic.commit(tree, "[Core] First", first, "vllm")
    synthetic.commit(tree, "[Core] Uses", {"vllm/b.py": "x = 1\n", "tests/t.py": uses}, "vllm")
    like = {"vllm/c.py": "x = 1\n", "tests/test_c.py": "def test_it_well(): pass\n"}
    synthetic.commit(tree, "[Core] Like", like, "vllm")
    synthetic.save(queue)
    rows = {line.split()[0]: line for line in overview(queue).splitlines()}
    assert rows["vllm/uses"].split("Pending")[1].split()[0] == "first"
    assert rows["vllm/like"].split("Pending")[1].split()[0] == "-"


def test_nothing_here_pushes() -> None:
    root = Path(__file__).parents[2] / "patchqueue"
    found = subprocess.run(
        ["grep", "-rlE", r'"push", "(origin|upstream|--set)', str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
