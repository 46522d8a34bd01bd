"""The runner of upstream's suites, on suites of a few lines."""

import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchqueue import known, offline_hub, suites
from patchqueue.errors import QueueError

PLUGIN = suites.UPSTREAM / "queue_plugin.py"

TESTS = """
    import pytest

    def test_passes():
        pass

    def test_known_failure():
        assert 1 == 2

    @pytest.mark.parametrize("n", [1, 2])
    def test_known_skip(n):
        pytest.skip("needs CUDA")
"""

SUITES = """
    [[suite]]
    name = "tiny"
    tree = "lmcache"
    paths = ["tests"]
    tests = 4
    quick_paths = ["tests/test_quick.py"]
    quick_tests = 1
"""

KNOWN = """
    [[known]]
    tree = "lmcache"
    outcome = "fail"
    cause = "one is not two"
    tests = ["tests/test_tiny.py::test_known_failure"]

    [[known]]
    tree = "lmcache"
    outcome = "skip"
    reason = "needs CUDA"
    cause = "no GPU"
    tests = { "tests/test_tiny.py::test_known_skip" = 2 }
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


@dataclass
class Tiny:
    """A source tree of one test file, and the two lists that belong to it."""

    root: Path
    capture: pytest.CaptureFixture[str]

    @property
    def tree(self) -> Path:
        return self.root / "tree"

    @property
    def upstream(self) -> Path:
        return self.root / "upstream"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def test_file(self, text: str, name: str = "test_tiny.py") -> None:
        write(self.tree / "tests" / name, text)

    def add_tests(self, text: str) -> None:
        file = self.tree / "tests" / "test_tiny.py"
        file.write_text(file.read_text() + textwrap.dedent(text))

    def add_known(self, text: str) -> None:
        file = self.upstream / "known.toml"
        file.write_text(file.read_text() + textwrap.dedent(text))

    def run(self, *arguments: str, tree: Path | None = None) -> tuple[int, str, str]:
        """Run the command line; return its status, output and error message."""
        options = [
            *("--lmcache", str(tree or self.tree)),
            *("--work", str(self.work)),
            *("--upstream", str(self.upstream)),
        ]
        status = suites.main([*options, *arguments])
        captured = self.capture.readouterr()
        return status, captured.out, captured.err


@pytest.fixture
def tiny(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Tiny:
    write(tmp_path / "packages" / "lmcache" / "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    made = Tiny(tmp_path, capfd)
    made.test_file(TESTS)
    write(made.upstream / "suites.toml", SUITES)
    write(made.upstream / "known.toml", KNOWN)
    shutil.copy(PLUGIN, made.upstream)
    return made


def test_run_as_listed_succeeds(tiny: Tiny) -> None:
    status, output, error = tiny.run()
    assert (status, error) == (0, "")
    assert "1 passed, 2 skipped, 1 xfailed" in output
    assert (tiny.work / "results" / "tiny.xml").is_file()


def test_second_run_takes_the_changed_tests(tiny: Tiny) -> None:
    assert tiny.run()[0] == 0
    tiny.add_tests("def test_new(): assert False\n")
    assert "test_new" in tiny.run()[2]


def test_unexpected_failure_is_named(tiny: Tiny) -> None:
    tiny.add_tests("def test_broken(): raise ValueError('odd')\n")
    status, _, error = tiny.run()
    assert status == 1
    assert "tiny:" in error
    assert "failed: tests/test_tiny.py::test_broken: ValueError: odd" in error
    assert "test_known_failure" not in error


def test_failing_teardown_is_a_failure(tiny: Tiny) -> None:
    tiny.add_tests("""
        @pytest.fixture
        def leaky():
            yield
            raise RuntimeError("leak")

        def test_leak(leaky):
            pass
    """)
    assert "test_leak: RuntimeError: leak" in tiny.run()[2]


def test_unexpected_skip_is_named(tiny: Tiny) -> None:
    tiny.add_tests("def test_lazy(): pytest.skip('needs a holiday')\n")
    status, _, error = tiny.run()
    assert status == 1
    assert "newly skipped: tests/test_tiny.py::test_lazy: needs a holiday" in error


def test_listed_skip_for_another_reason_is_unexpected(tiny: Tiny) -> None:
    file = tiny.tree / "tests" / "test_tiny.py"
    file.write_text(file.read_text().replace("needs CUDA", "no module named x"))
    error = tiny.run()[2]
    assert "lists 2 skipped, found 0: tests/test_tiny.py::test_known_skip" in error
    assert "newly skipped: tests/test_tiny.py::test_known_skip[1]" in error


def test_known_failure_that_passes_is_stale(tiny: Tiny) -> None:
    file = tiny.tree / "tests" / "test_tiny.py"
    file.write_text(file.read_text().replace("1 == 2", "1 == 1"))
    status, _, error = tiny.run()
    assert status == 1
    assert "test_known_failure: [XPASS(strict)] one is not two" in error


def test_known_skip_that_runs_is_stale(tiny: Tiny) -> None:
    file = tiny.tree / "tests" / "test_tiny.py"
    file.write_text(file.read_text().replace("pytest.skip", "str"))
    status, _, error = tiny.run()
    assert status == 1
    assert "lists 2 skipped, found 0: tests/test_tiny.py::test_known_skip" in error


@pytest.mark.parametrize("outcome", ["fail", "flaky"])
def test_entry_without_a_test_is_stale(tiny: Tiny, outcome: str) -> None:
    tiny.add_known(f"""
        [[known]]
        tree = "lmcache"
        outcome = "{outcome}"
        reruns = 1
        cause = "gone"
        tests = ["tests/test_tiny.py::test_gone"]
    """)
    status, _, error = tiny.run()
    assert status == 1
    assert "does not exist: tests/test_tiny.py::test_gone" in error


def test_entries_of_the_other_tree_are_not_stale(tiny: Tiny) -> None:
    tiny.add_known("""
        [[known]]
        tree = "vllm"
        outcome = "fail"
        cause = "elsewhere"
        tests = ["tests/test_tiny.py::test_gone"]
    """)
    assert tiny.run()[0] == 0


def test_entry_of_a_patch_waits_for_its_file(tiny: Tiny) -> None:
    tiny.add_known("""
        [[known]]
        tree = "lmcache"
        outcome = "skip"
        reason = "needs CUDA"
        cause = "no GPU"
        patch = "lmcache/new.patch"
        tests = { "tests/test_new.py" = 1 }
    """)
    assert tiny.run()[0] == 0
    tiny.test_file("def test_new(): pass\n", name="test_new.py")
    assert "lists 1 skipped, found 0: tests/test_new.py" in tiny.run()[2]


def test_collection_error_is_named(tiny: Tiny) -> None:
    tiny.test_file("import no_such_module\n", name="test_other.py")
    status, _, error = tiny.run()
    assert status == 1
    assert "failed: tests/test_other.py: " in error
    assert "No module named 'no_such_module'" in error


def test_module_that_skips_itself_is_named(tiny: Tiny) -> None:
    tiny.test_file("import pytest\npytest.importorskip('no_such_module')\n", name="test_other.py")
    status, _, error = tiny.run()
    assert status == 1
    assert "newly skipped: tests/test_other.py: could not import" in error


def test_ignored_file_is_not_run(tiny: Tiny) -> None:
    tiny.test_file("import no_such_module\n", name="test_other.py")
    ignore = 'ignore = { "tests/test_other.py" = "needs it" }\n'
    write(tiny.upstream / "suites.toml", SUITES + ignore)
    assert tiny.run()[0] == 0
    (tiny.tree / "tests" / "test_other.py").unlink()
    assert "ignores a path that does not exist: tests/test_other.py" in tiny.run()[2]


def test_patterns_take_in_new_files(tiny: Tiny) -> None:
    text = SUITES.replace('["tests"]', '["tests/test_t*.py"]')
    write(tiny.upstream / "suites.toml", text)
    tiny.test_file("def test_new(): assert False\n", name="test_two.py")
    tiny.test_file("def test_out(): assert False\n", name="test_outside.py")
    error = tiny.run()[2]
    assert "failed: tests/test_two.py::test_new" in error
    assert "test_out" not in error


def test_missing_tests_are_counted(tiny: Tiny) -> None:
    tiny.test_file("def test_passes(): pass\n")
    write(tiny.upstream / "known.toml", "known = []")
    assert "only 1 tests were found, the pins have 4" in tiny.run()[2]


def test_nothing_collected_fails(tiny: Tiny) -> None:
    tiny.test_file("")
    write(tiny.upstream / "known.toml", "known = []")
    status, _, error = tiny.run()
    assert status == 1
    assert "only 0 tests were found, the pins have 4" in error


def test_pytest_that_dies_fails(tiny: Tiny) -> None:
    tiny.add_tests("def test_dies(): __import__('os')._exit(3)\n")
    status, _, error = tiny.run()
    assert status == 1
    assert "pytest ended with status 3 and without a report" in error


def test_flaky_test_is_rerun_and_reported(tiny: Tiny) -> None:
    tiny.add_tests("""
        from pathlib import Path

        def wavers(times):
            file = Path("counter")
            runs = len(file.read_text()) if file.exists() else 0
            file.write_text("x" * (runs + 1))
            assert runs >= times

        def test_wavers():
            wavers(1)
    """)
    tiny.add_known("""
        [[known]]
        tree = "lmcache"
        outcome = "flaky"
        reruns = 1
        cause = "a timeout"
        tests = ["tests/test_tiny.py::test_wavers"]
    """)
    status, output, _ = tiny.run()
    assert status == 0
    assert "needed a rerun: tests/test_tiny.py::test_wavers" in output
    file = tiny.tree / "tests" / "test_tiny.py"
    file.write_text(file.read_text().replace("wavers(1)", "wavers(2)"))
    assert "failed: tests/test_tiny.py::test_wavers" in tiny.run()[2]


def test_other_tests_are_not_rerun(tiny: Tiny) -> None:
    tiny.add_tests("""
        def test_wavers():
            from pathlib import Path
            existed = Path("counter").exists()
            Path("counter").touch()
            assert existed
    """)
    assert "failed: tests/test_tiny.py::test_wavers" in tiny.run()[2]


def test_quick_runs_the_quick_paths_only(tiny: Tiny) -> None:
    tiny.test_file("def test_quick(): pass\n", name="test_quick.py")
    status, output, _ = tiny.run("--quick")
    assert status == 0
    assert "1 passed" in output


def test_limits_are_widened_in_the_copy_only(tiny: Tiny) -> None:
    tiny.add_tests("def test_limit(): assert 10.0 > 60\n")
    file = tiny.upstream / "suites.toml"
    file.write_text(
        file.read_text() + '[suite.limits."tests/test_tiny.py"]\n"assert 10.0" = "assert 99.0"\n'
    )
    status, _, error = tiny.run()
    assert (status, error) == (0, "")
    assert "assert 10.0" in (tiny.tree / "tests" / "test_tiny.py").read_text()


def test_a_limit_that_is_not_there_is_stale(tiny: Tiny) -> None:
    file = tiny.upstream / "suites.toml"
    file.write_text(file.read_text() + '[suite.limits."tests/test_tiny.py"]\n"gone" = "wide"\n')
    status, _, error = tiny.run()
    assert status == 1
    assert "widens a limit that does not exist: tests/test_tiny.py: gone" in error


def test_markers_of_a_suite_reach_its_tests(tiny: Tiny) -> None:
    write(tiny.upstream / "suites.toml", SUITES + 'markers = ["skipif_slow"]\n')
    tiny.add_tests("""
        def test_marked(request):
            assert request.node.get_closest_marker("skipif_slow")
    """)
    assert tiny.run()[0] == 0


def test_settings_of_the_user_do_not_reach_the_tests(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_FS_LOAD_CONCURRENCY", "4")
    tiny.add_tests("""
        def test_environment():
            import os
            assert os.environ["HF_HUB_OFFLINE"] == "1"
            assert "LMCACHE_FS_LOAD_CONCURRENCY" not in os.environ
    """)
    assert tiny.run()[0] == 0


def test_missing_tree_says_what_to_do(tiny: Tiny) -> None:
    status, _, error = tiny.run(tree=tiny.root / "absent")
    assert status == 1
    assert "no lmcache tests in" in error
    assert "nox -s apply" in error


def test_unnamed_tree_says_which_option(tiny: Tiny) -> None:
    assert suites.main(["--work", str(tiny.work)]) == 1
    assert "pass --lmcache" in tiny.capture.readouterr().err


def test_unknown_suite_names_those_that_exist(tiny: Tiny) -> None:
    status, _, error = tiny.run("big")
    assert status == 1
    assert "no suite named big; there are tiny" in error


def test_foreign_folder_in_the_way_is_kept(tiny: Tiny) -> None:
    write(tiny.work / "trees" / "lmcache" / "precious", "")
    status, _, error = tiny.run()
    assert status == 1
    assert "is not a scratch folder" in error
    assert (tiny.work / "trees" / "lmcache" / "precious").exists()


def test_package_that_is_not_installed_is_named(tiny: Tiny) -> None:
    with pytest.raises(QueueError, match="no_such_package is not installed"):
        suites.copy_tests("no_such_package", tiny.tree, tiny.work)


def test_wrong_outcome_in_the_list_is_named(tiny: Tiny) -> None:
    tiny.add_known("""
        [[known]]
        tree = "lmcache"
        outcome = "maybe"
        cause = "?"
        tests = []
    """)
    assert "known.toml: outcome 'maybe' is not one of" in tiny.run()[2]


def test_entry_without_a_cause_is_refused(tiny: Tiny) -> None:
    tiny.add_known('[[known]]\ntree = "lmcache"\noutcome = "fail"\ntests = []\n')
    assert "known.toml: an entry lacks 'cause'" in tiny.run()[2]


def test_long_lists_are_shortened() -> None:
    names = known.shorten([str(n) for n in range(known.NAMES_SHOWN + 5)])
    assert names[-1] == "and 5 more"
    assert len(names) == known.NAMES_SHOWN + 1


def test_lists_of_the_repository_load() -> None:
    every = suites.load_suites(suites.UPSTREAM / "suites.toml")
    assert all(suite.tests > 0 for suite in every)
    assert all(bool(suite.quick_paths) == bool(suite.quick_tests) for suite in every)
    for tree in ("lmcache", "vllm"):
        listed = known.load(suites.UPSTREAM / "known.toml", tree)
        selects = [suite.selects for suite in every if suite.tree == tree]
        for entries in (listed.skips, listed.failures, listed.flaky):
            for entry in entries:
                file = known.file_of(entry.key)
                assert any(select(file) for select in selects), entry


def test_hub_cache_has_the_layout_of_the_hub(tmp_path: Path) -> None:
    offline_hub.build(tmp_path)
    for name in offline_hub.MODELS:
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        revision = (folder / "refs" / "main").read_text()
        snapshot = folder / "snapshots" / revision
        assert {file.name for file in snapshot.iterdir()} == {
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        }


def test_hub_tokenizer_keeps_every_byte(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    offline_hub.build(tmp_path)
    file = next(tmp_path.rglob("tokenizer.json"))
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    text = "Grüße, 世界!\n"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
