"""The tests that guard a patch, run at a commit of an upstream tree."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from patchqueue import git, offline_hub
from patchqueue.suites import PYTEST_FINISHED, Run, Suite, environment

_TIMEOUT = 900
_SHOWN = 20  # lines of the first failure, and of the end
_FAILURES = re.compile(r"=+ (FAILURES|ERRORS) =+$")
# Made while a wheel is built; the sources lack them.
_BUILT = ("*.so", "*_pb2.py", "*_pb2_grpc.py")


@dataclass(frozen=True)
class Trial:
    """How the tests went: pytest's last line, and its first failure and last lines."""

    passed: bool
    summary: str
    output: str

    def __str__(self) -> str:
        return self.summary if self.passed else f"{self.summary}\n{self.output}"


def run_tests(
    repository: Path, commit: str, tree: str, tests: Sequence[str], donor: Path | None = None
) -> Trial:
    """Run test files of an upstream tree as they are at `commit`, offline.

    The package under test is that commit's. Compiled files, and files that a build
    generates, come from the wheel `donor`, else from the release of the package that is
    installed here, if one is. Never from both: generated files of two releases clash.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        git.checkout(repository, commit, Path(folder, "tree")) as copy,
    ):
        if donor:
            _lay_built_files_of_wheel(tree, donor, copy)
        else:
            _lay_built_files(tree, copy)
        work = Path(folder, "run")
        offline_hub.build(work / "hub")
        suite = Suite("trial", tree, list(tests), tests=0, env={"VLLM_TARGET_DEVICE": "cpu"})
        env = environment(suite, Run({tree: copy}, work))
        env["PYTHONPATH"] = str(copy)
        options = "-q -p no:cacheprovider --tb=short --show-capture=no -W ignore".split()
        return _call([sys.executable, "-m", "pytest", *options, *tests], copy, env)


def _call(command: Sequence[str], folder: Path, env: dict[str, str]) -> Trial:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(False, f"no end after {_TIMEOUT} s", "")
    lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    last = lines[-1].strip("= ") if lines else ""
    words = last if done.returncode in PYTEST_FINISHED else f"did not run: {last}"
    return Trial(done.returncode == 0, words, "\n".join(_first_and_last(lines)))


def _first_and_last(lines: Sequence[str]) -> list[str]:
    """The beginning of the first failure, and the end."""
    heads = [number for number, line in enumerate(lines) if _FAILURES.match(line)]
    start = heads[0] if heads else max(len(lines) - 2 * _SHOWN, 0)
    left_out = len(lines) - start - 2 * _SHOWN
    if left_out <= 0:
        return list(lines[start:])
    middle = f"... {left_out} lines left out ..."
    return [*lines[start : start + _SHOWN], middle, *lines[-_SHOWN:]]


def _lay_built_files_of_wheel(tree: str, donor: Path, copy: Path) -> None:
    with zipfile.ZipFile(donor) as archive:
        for name in archive.namelist():
            built = name.startswith(f"{tree}/") and any(fnmatch(name, p) for p in _BUILT)
            if built and (copy / name).parent.is_dir() and not (copy / name).exists():
                archive.extract(name, copy)


def _lay_built_files(tree: str, copy: Path) -> None:
    spec = importlib.util.find_spec(tree)
    if spec is None or spec.origin is None:
        return
    installed = Path(spec.origin).parent
    for pattern in _BUILT:
        for file in installed.rglob(pattern):
            target = copy / tree / file.relative_to(installed)
            if target.parent.is_dir() and not target.exists():
                shutil.copy(file, target)
