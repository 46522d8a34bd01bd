"""Fixtures for the queue's own tests: everything real but the upstreams, which are tiny."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patchqueue.apply import apply
from patchqueue.layout import CACHE_VARIABLE, Layout
from tests.queue import synthetic
from tests.queue.index import Index, serve


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index that pip is configured for, and an empty cache."""
    with served(tmp_path / "cache", monkeypatch) as index:
        yield index


@contextmanager
def served(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Run an index with both upstreams, and point pip and the cache variable at it."""
    with serve() as index:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv(CACHE_VARIABLE, str(cache))
        synthetic.publish(index)
        yield index


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkouts that the tests get copies of, with the cache that they share."""
    folder = tmp_path_factory.mktemp("templates")
    with pytest.MonkeyPatch.context() as monkeypatch, served(folder / "cache", monkeypatch):
        synthetic.checkout(folder / "empty")
        layout = synthetic.checkout(folder / "queue")
        apply(layout)
        synthetic.change(layout, "lmcache", "[Core] First fix", 5)
        synthetic.change(layout, "lmcache", "[Core] Second fix", 30)
        synthetic.change(layout, "vllm", "[Core] Engine fix", 7)
        synthetic.save(layout)
    return folder


def copied(templates: Path, name: str, tmp_path: Path) -> Layout:
    """A checkout of the test's own."""
    shutil.copytree(templates / "cache", tmp_path / "cache")
    return Layout.of(shutil.copytree(templates / name, tmp_path / "checkout"))


@pytest.fixture
def empty(index: Index, templates: Path, tmp_path: Path) -> Layout:
    """A checkout whose series is empty, and no work tree."""
    return copied(templates, "empty", tmp_path)


@pytest.fixture
def queue(index: Index, templates: Path, tmp_path: Path) -> Layout:
    """A checkout with two patches for lmcache and one for vllm, applied."""
    return copied(templates, "queue", tmp_path)


@pytest.fixture(params=["stgit", "plain git"])
def route(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with StGit, and with a PATH on which there is none."""
    if request.param == "stgit":
        need_stgit()
        return "stgit"
    hide_stgit(tmp_path, monkeypatch)
    return "plain git"


def need_stgit() -> None:
    """Skip the test where there is no StGit; in CI there must be one."""
    if shutil.which("stg") is None:
        reason = "StGit is not installed (Debian: apt-get install stgit)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def hide_stgit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a PATH with everything on it but `stg`."""
    hidden = tmp_path.parent / "bin-without-stg"  # made once for all tests
    if not hidden.exists():
        hidden.mkdir()
        for folder in os.environ["PATH"].split(os.pathsep):
            for program in Path(folder).glob("*"):
                if program.name != "stg" and not (hidden / program.name).exists():
                    (hidden / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(hidden))
