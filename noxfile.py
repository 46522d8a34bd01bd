"""The sessions of the patch queue; the logic is in `patchqueue/` and `tests/`."""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"  # uv ignores pip's configuration
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.stop_on_first_error = True

PYTHON = "3.11"
BENCHMARKS = ("fs_load_concurrency", "restore_windows", "store_during_restore")
PROJECT = nox.project.load_toml("pyproject.toml")


def group(session: nox.Session, name: str) -> None:
    """Install a dependency group of pyproject.toml."""
    session.install("--quiet", *nox.project.dependency_groups(PROJECT, name))


def queue(session: nox.Session, *arguments: str) -> None:
    """Run a command of the queue."""
    session.run("python", "-m", "patchqueue", *arguments)


@nox.session(python=PYTHON, default=False)
def pin(session: nox.Session) -> None:
    """Write pins.lock (`-- vllm==X lmcache==Y`; else for today's releases); or `-- --check` it."""
    group(session, "queue")
    queue(session, "pin", *session.posargs)


@nox.session(python=PYTHON, default=False)
def fetch(session: nox.Session) -> None:
    """Download and verify sdists and donor wheels (`-- --all`: for every platform)."""
    group(session, "queue")
    queue(session, "fetch", *session.posargs)


@nox.session(python=PYTHON, default=False)
def apply(session: nox.Session) -> None:
    """Make work/lmcache and work/vllm: the pinned sdists with the series as commits."""
    group(session, "queue")
    queue(session, "apply")


@nox.session(python=PYTHON, default=False)
def export(session: nox.Session) -> None:
    """Write the work trees' commits back to patches/ and series."""
    group(session, "queue")
    queue(session, "export")


@nox.session(python=PYTHON, default=False)
def status(session: nox.Session) -> None:
    """Show the series at a glance: lines, guarding tests, upstream status, age."""
    group(session, "queue")
    queue(session, "status")


@nox.session(python=PYTHON, default=False)
def rebase(session: nox.Session) -> None:
    """Bring the series to other releases (`-- vllm==X lmcache==Y`, `-- --help`)."""
    if "--tests" in session.posargs:
        install_stack(session)
        session.install("--quiet", "-r", "requirements/tests.txt")
    group(session, "lint" if "--lint" in session.posargs else "queue")
    queue(session, "rebase", *session.posargs)


@nox.session(python=PYTHON, default=False)
def upstream(session: nox.Session) -> None:
    """Prepare a patch for its upstream (`-- PATCH --clone DIR`; `-- --all`: what is ready?)."""
    if not {"--all", "--no-tests"} & set(session.posargs):
        install_stack(session)
        session.install("--quiet", "-r", "requirements/tests.txt")
    group(session, "lint")
    queue(session, "upstream", *session.posargs)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Check our code, the series, the patches' bytes, and the patched files by upstream's rules."""
    group(session, "lint")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure")
    queue(session, "lint")


@nox.session(python=PYTHON, default=False)
def build(session: nox.Session) -> None:
    """Write the wheels into dist/ (`-- --target cpu|cuda --machine M --python V`)."""
    group(session, "queue")
    session.install("--quiet", "-r", "requirements/build.txt")
    queue(session, "build", *session.posargs)


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """Run upstream's suites on the patched trees, then ours (`-- --quick`: the nearest ones)."""
    install_stack(session)
    session.install("--quiet", "-r", "requirements/tests.txt")
    group(session, "lint")
    group(session, "qualify")
    trees = ["--lmcache", "work/lmcache", "--vllm", "work/vllm"]
    scratch = str(Path(session.create_tmp()) / "upstream")
    suites = ["-m", "patchqueue.suites", *trees, "--work", scratch, *session.posargs]
    session.run("python", *suites)
    session.run("python", "-m", "pytest", "-n", "2", "tests/queue")
    # Apart: it imports torch, whose setuptools refuses a distutils that is loaded already.
    files = ["-n", "2", "--dist", "loadfile"]  # The machines of faults take long, on one core each.
    session.run("python", "-m", "pytest", *files, "tests/faults", "tests/reports")
    # Apart: vLLM's log is switched off before its import.
    session.run("python", "-m", "pytest", "tests/qualify")


@nox.session(python=PYTHON)
def integration(session: nox.Session) -> None:
    """Restore through a real LMCache server and a real vLLM, on the CPU, from the wheels."""
    install_stack(session)
    group(session, "qualify")
    session.run("python", "-m", "pytest", "tests/integration", *session.posargs)


@nox.session(python=PYTHON, default=False)
def gpu(session: nox.Session) -> None:
    """Restore on an NVIDIA GPU; skips where there is none."""
    if shutil.which("nvidia-smi") is None:
        session.skip("no NVIDIA GPU here: nvidia-smi is not on PATH")
    group(session, "queue")
    session.install(*built(session, "cuda"), "pytest", "numpy")
    session.run("python", "-m", "pytest", "tests/gpu", *session.posargs)


@nox.session(python=PYTHON, default=False)
def benchmark(session: nox.Session) -> None:
    """Print measured tables (`-- NAME [ARGS]`: one file of benchmarks/; else all)."""
    install_stack(session)
    runs = [session.posargs] if session.posargs else [[name] for name in BENCHMARKS]
    for name, *arguments in runs:
        session.run("python", "-m", f"benchmarks.{name}", *arguments)


@nox.session(python=PYTHON, default=False)
def qualify(session: nox.Session) -> None:
    """Measure the claims, keep the evidence, draw the report (`-- --profile full`, `-- --help`)."""
    if {"--report", "--help", "-h"} & set(session.posargs):
        group(session, "qualify")
    else:
        install_stack(session)
        group(session, "qualify")
    session.run("python", "-m", "qualify", *session.posargs)


def install_stack(session: nox.Session) -> None:
    """Install the CPU wheels of the patched trees and all that they need at run time."""
    session.install("--quiet", "-r", "requirements/cpu.txt", "-r", "requirements/build.txt")
    group(session, "queue")
    session.install("--quiet", "--no-deps", "--force-reinstall", *built(session, "cpu"))


def built(session: nox.Session, target: str) -> list[str]:
    """Build the wheels for this session alone."""
    folder = Path(session.create_tmp()) / "dist"
    session.env["BOUNDED_RESTORE_DIST"] = str(folder)
    queue(session, "build", "--target", target, "--dist", str(folder))
    return [str(path) for path in sorted(folder.glob("*.whl"))]
