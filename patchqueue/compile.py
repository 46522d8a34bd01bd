"""Compiling LMCache for a CPU, which has no wheel to lend its compiled files."""

import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.platforms import Platform
from patchqueue.worktree import WorkTree


def compiled(tree: WorkTree, version: str, wanted: Platform) -> Path:
    """The wheel of `tree`, compiled here, or earlier from the same files.

    Raises:
        QueueError: this machine cannot compile it.
    """
    _check(tree, wanted)
    files = git.text(tree.path, "rev-parse", "HEAD^{tree}")
    torch = importlib.metadata.version("torch")
    key = hashlib.sha256(f"{files} {version} {wanted} {torch}".encode()).hexdigest()
    kept = tree.layout.cache / "compiled" / key[:16]
    if not list(kept.glob("*.whl")):
        _compile(tree, version, kept)
    return next(kept.glob("*.whl"))


def _check(tree: WorkTree, wanted: Platform) -> None:
    here = Platform.here()
    if (wanted.machine, wanted.python) != (here.machine, here.python):
        raise QueueError(
            f"{tree.pin.name} for a CPU is compiled, and this is Python {here.python} on "
            f"{here.machine}; build it with Python {wanted.python} on {wanted.machine}"
        )
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise QueueError(
            f"no C++ compiler: {compiler} is not on PATH. Install one (Debian: `apt-get "
            "install g++`) or name yours in CXX, and run this again"
        )


def _compile(tree: WorkTree, version: str, kept: Path) -> None:
    """Compile outside every git repository: setuptools-scm would ask the nearest one."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, tree.pin.name)
        source.mkdir()
        archive = git.output(tree.path, "archive", "--format=tar", "HEAD")
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        _pip_wheel(tree, source, version, Path(folder))
        (wheel,) = Path(folder).glob("*.whl")
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, kept / f"{wheel.name}.part")
        (kept / f"{wheel.name}.part").rename(kept / wheel.name)


def _pip_wheel(tree: WorkTree, source: Path, version: str, folder: Path) -> None:
    env = os.environ | {
        "NO_GPU_EXT": "1",
        f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{tree.pin.name.upper()}": version,
        "GIT_CEILING_DIRECTORIES": str(folder),
    }
    env.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    log = tree.path.parent / f"{tree.pin.name}-build.log"
    command = "-m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir".split()
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, *command, str(folder), str(source)],
            env=env,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise QueueError(f"compiling {tree.pin.name} failed; the whole log is {log}:\n{last}")
