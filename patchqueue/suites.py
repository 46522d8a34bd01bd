"""Upstream's own test suites, run against the installed packages.

``tests/upstream/suites.toml`` names the suites. For each, upstream's tests are
copied to a scratch folder, so that ``import vllm`` finds the installed package
and not a source tree without compiled modules, and run there with the current
interpreter, offline. ``known.toml`` says which tests fail or skip on the
unpatched pins; any other difference is an error.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from patchqueue import known as known_tests
from patchqueue import offline_hub
from patchqueue.errors import QueueError
from patchqueue.known import Known

UPSTREAM = Path(__file__).resolve().parents[1] / "tests" / "upstream"
SCRATCH_MARK = ".upstream-suites"
TEST_TIMEOUT = 600
PYTEST_FINISHED = (0, 1)  # all passed, or some failed
FOREIGN_SETTINGS = ("LMCACHE_", "VLLM_", "HF_", "TRANSFORMERS_", "PYTEST_")


@dataclass(frozen=True)
class Suite:
    """One call of pytest on one upstream tree.

    ``paths`` are folders, files or patterns of files; ``ignore`` are those of
    them that are not run, each with its cause. ``tests`` is how many tests the
    unpatched pins have. ``quick_paths`` and ``quick_tests`` are the short form.
    ``limits`` widens time limits: new text by old text, by file.
    """

    name: str
    tree: str
    paths: list[str]
    tests: int
    ignore: dict[str, str] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    markers: list[str] = field(default_factory=list)
    workers: int = 0
    quick_paths: list[str] = field(default_factory=list)
    quick_tests: int = 0
    limits: dict[str, dict[str, str]] = field(default_factory=dict)

    def quick(self) -> "Suite":
        """Return the short form of the suite."""
        return replace(self, paths=self.quick_paths, tests=self.quick_tests)

    def selects(self, file: str) -> bool:
        """Tell whether the suite runs the tests of ``file``."""

        def named(paths: Iterable[str]) -> bool:
            return any(known_tests.matches(p, file) or fnmatch(file, p) for p in paths)

        return named(self.paths) and not named(self.ignore)

    def found_paths(self, scratch: Path) -> list[str]:
        """Return the paths with their patterns replaced by the files."""
        found = []
        for path in self.paths:
            files = sorted(scratch.glob(path)) if "*" in path else [scratch / path]
            found += [str(file.relative_to(scratch)) for file in files]
        return [path for path in found if path not in self.ignore]


@dataclass(frozen=True)
class Run:
    """What the runs of one call have in common."""

    trees: dict[str, Path]
    work: Path
    upstream: Path = UPSTREAM


def load_suites(path: Path) -> list[Suite]:
    """Read ``suites.toml``.

    Raises:
        QueueError: The file is missing or a suite has wrong keys.

    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["suite"]
        return [Suite(**entry) for entry in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise QueueError(f"{path}: {error}") from error


def choose(suites: list[Suite], names: list[str], quick: bool) -> list[Suite]:
    """Return the suites to run: those named, or all; short forms if quick.

    Raises:
        QueueError: A name is not that of a suite, or nothing is left to run.

    """
    by_name = {suite.name: suite for suite in suites}
    if unknown := [name for name in names if name not in by_name]:
        raise QueueError(f"no suite named {', '.join(unknown)}; there are {', '.join(by_name)}")
    chosen = [by_name[name] for name in names] if names else suites
    if quick:
        chosen = [suite.quick() for suite in chosen if suite.quick_paths]
    if not chosen:
        raise QueueError("none of the named suites has a quick form")
    return chosen


def _clear_scratch(scratch: Path) -> None:
    if not scratch.exists():
        return
    if not (scratch / SCRATCH_MARK).is_file():
        raise QueueError(f"{scratch} is not a scratch folder of the suites; move it")
    shutil.rmtree(scratch)


def _link_package(tree: str, scratch: Path) -> None:
    """Lay the installed package beside the tests that read its sources."""
    spec = importlib.util.find_spec(tree)
    if spec is None or spec.origin is None:
        raise QueueError(f"{tree} is not installed for {sys.executable}")
    (scratch / tree).symlink_to(Path(spec.origin).parent, target_is_directory=True)


def copy_tests(tree: str, source: Path, work: Path) -> Path:
    """Copy a tree's tests and pytest configuration to a fresh scratch folder.

    Raises:
        QueueError: The tree has no tests, its package is not installed, or a
            folder that is not ours is in the way.

    """
    if not (source / "tests").is_dir():
        raise QueueError(f"no {tree} tests in {source}; run `nox -s apply` first, or name the tree")
    scratch = work / "trees" / tree
    _clear_scratch(scratch)
    scratch.mkdir(parents=True)
    (scratch / SCRATCH_MARK).touch()
    shutil.copytree(
        source / "tests",
        scratch / "tests",
        ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"),
    )
    for file in ("pytest.ini", "pyproject.toml"):
        if (source / file).is_file():
            shutil.copy(source / file, scratch / file)
    _link_package(tree, scratch)
    return scratch


def environment(suite: Suite, run: Run) -> dict[str, str]:
    """Return the environment of the suite: offline, and free of user settings."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_SETTINGS) and name != "PYTHONDONTWRITEBYTECODE"
    }
    search_path = [str(run.upstream), os.environ.get("PYTHONPATH", "")]
    return {
        **ours,
        "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_CACHE": str(run.work / "hub"),
        "XDG_CACHE_HOME": str(run.work / "cache"),
        "XDG_CONFIG_HOME": str(run.work / "config"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        **suite.env,
    }


def command(suite: Suite, scratch: Path, results: Path) -> list[str]:
    """Return the pytest command of a suite; its files in ``results`` bear its name."""
    parallel = ["-n", str(suite.workers), "--dist", "worksteal"]
    return [
        # Tests are named from the tree, also when it lies in a checkout of ours.
        *(sys.executable, "-m", "pytest", "-q", f"--rootdir={scratch}"),
        *("-p", "queue_plugin", "-p", "no:cacheprovider"),
        *("-o", "log_cli=false", "--disable-warnings", "--tb=short"),
        f"--timeout={TEST_TIMEOUT}",
        f"--queue-rules={results / suite.name}.rules.json",
        f"--queue-report={results / suite.name}.json",
        f"--junitxml={results / suite.name}.xml",
        *(parallel if suite.workers else []),
        *(f"--ignore={path}" for path in suite.ignore),
        *suite.args,
        *suite.found_paths(scratch),
    ]


def _known_here(suite: Suite, run: Run, scratch: Path) -> Known:
    known = known_tests.load(run.upstream / "known.toml", suite.tree)
    known = known.within(suite.selects)
    known.skips = [
        entry
        for entry in known.skips
        if entry.patch is None or (scratch / known_tests.file_of(entry.key)).exists()
    ]
    return known


def _call_pytest(suite: Suite, run: Run, known: Known) -> tuple[int, dict[str, Any]]:
    """Run pytest; return its status and the report of the plugin."""
    scratch = run.work / "trees" / suite.tree
    results = run.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    rules = results / f"{suite.name}.rules.json"
    rules.write_text(json.dumps(known.rules(suite.markers)), encoding="utf-8")
    report = results / f"{suite.name}.json"
    report.unlink(missing_ok=True)
    status = subprocess.run(
        command(suite, scratch, results),
        cwd=scratch,
        env=environment(suite, run),
        check=False,
    ).returncode
    if not report.is_file():
        raise QueueError(f"pytest ended with status {status} and without a report")
    return status, json.loads(report.read_text(encoding="utf-8"))


def run_suite(suite: Suite, run: Run) -> list[str]:
    """Run one suite; return one line for each difference from the list.

    Raises:
        QueueError: pytest did not get to its end.

    """
    scratch = run.work / "trees" / suite.tree
    if gone := [path for path in suite.ignore if not (scratch / path).exists()]:
        return [f"suites.toml ignores a path that does not exist: {p}" for p in gone]
    if unmatched := _widen_limits(suite, scratch):
        return [f"suites.toml widens a limit that does not exist: {limit}" for limit in unmatched]
    known = _known_here(suite, run, scratch)
    status, report = _call_pytest(suite, run, known)
    for name in known_tests.rerun_tests(report["tests"]):
        print(f"{suite.name}: needed a rerun: {name}", flush=True)
    problems = known_tests.check(known, report["tests"], report["modules"], suite.tests)
    if status not in PYTEST_FINISHED and not problems:
        return [f"pytest ended with status {status}"]
    return problems


def _widen_limits(suite: Suite, scratch: Path) -> list[str]:
    """Replace limits in the copied tests; return those that are not there."""
    unmatched = []
    for name, limits in suite.limits.items():
        file = scratch / name
        text = file.read_text(encoding="utf-8")
        unmatched += [f"{name}: {old}" for old in limits if old not in text]
        for old, new in limits.items():
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    return unmatched


def _run_and_time(suite: Suite, run: Run) -> list[str]:
    print(f"upstream suite {suite.name}", flush=True)
    start = time.monotonic()
    try:
        problems = run_suite(suite, run)
    except QueueError as error:
        problems = [str(error)]
    seconds = time.monotonic() - start
    verdict = f"{len(problems)} problems" if problems else "as expected"
    print(f"upstream suite {suite.name}: {verdict}, {seconds:.0f} s", flush=True)
    return problems


def _prepare(suites: list[Suite], run: Run) -> None:
    for tree in dict.fromkeys(suite.tree for suite in suites):
        if tree not in run.trees:
            raise QueueError(f"no {tree} tree was named: pass --{tree}")
        copy_tests(tree, run.trees[tree], run.work)
    offline_hub.build(run.work / "hub")


def run_suites(suites: list[Suite], run: Run) -> None:
    """Run the suites one after the other.

    Raises:
        QueueError: A suite differs from the list; the message names the tests.

    """
    _prepare(suites, run)
    failed = []
    for suite in suites:
        if problems := _run_and_time(suite, run):
            failed += [f"{suite.name}:"]
            failed += [f"  {line}" for line in known_tests.shorten(problems)]
    if failed:
        raise QueueError(
            "upstream's tests differ from tests/upstream/known.toml:\n  "
            + "\n  ".join(failed)
            + f"\nOutcomes are in {run.work / 'results'}."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m patchqueue.suites",
        description="Run upstream's own test suites on the installed packages.",
    )
    parser.add_argument("names", nargs="*", metavar="suite", help="default: all")
    parser.add_argument("--lmcache", type=Path, help="LMCache source tree")
    parser.add_argument("--vllm", type=Path, help="vLLM source tree")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--quick", action="store_true", help="the short forms")
    parser.add_argument(
        "--upstream",
        type=Path,
        default=UPSTREAM,
        help="folder of suites.toml, known.toml and the plugin",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    options = _parser().parse_args(arguments)
    trees = {"lmcache": options.lmcache, "vllm": options.vllm}
    run = Run(
        trees={tree: path.resolve() for tree, path in trees.items() if path},
        work=options.work.resolve(),
        upstream=options.upstream.resolve(),
    )
    try:
        suites = load_suites(run.upstream / "suites.toml")
        run_suites(choose(suites, options.names, options.quick), run)
    except QueueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
