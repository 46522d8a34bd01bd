"""States leave the GPU, and come back through windows, by CUDA IPC.

The server is real. In place of an engine a client registers tensors on the GPU and
compares every byte there. LMCache cuts the sliding windows of DeepSeek-V4-Flash itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.integration import damage
from tests.integration.client import Client, Deployment, Rank, State, connected
from tests.integration.devices import CUDA
from tests.integration.environment import plugin_environment
from tests.integration.geometry import DEEPSEEK_V4_FLASH_PAGED, PLAIN, Geometry, Kind
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import GIB

WINDOW = 8
STATE = State(chunks=30, seed=1)  # Windows of 8, 8, 8 and 6 chunks.
LOST = 12  # In the second window.
AFTER_ONE_WINDOW = set(range(WINDOW, STATE.chunks))

TIMEOUT = ("--l2-prefetch-window-timeout-seconds", "1")


def keep_the_gpu_busy() -> None:
    """Give the GPU work for longer than a server needs to load all windows."""
    matrix = torch.rand((16384, 16384), device=CUDA.name)
    product = torch.empty_like(matrix)
    for _ in range(20):
        torch.matmul(matrix, matrix, out=product)


def one_for_each(_kind: Kind) -> int:
    return STATE.chunks


@dataclass(frozen=True)
class Bench:
    """A server whose L2 holds the state, and a client with its blocks on the GPU."""

    geometry: Geometry
    server: LMCacheServer
    client: Client

    @property
    def rank(self) -> Rank:
        (rank,) = self.client.ranks
        return rank

    @property
    def l2_folder(self) -> Path:
        return self.server.config.l2_folder

    def store(self) -> None:
        self.client.store(STATE)
        self.server.wait_stored(STATE.chunks)

    def forget(self) -> None:
        """Empty the blocks, and what lies above L2."""
        self.rank.wipe()
        self.server.clear_l1()
        self.server.wait_released()

    def object_of(self, chunk: int) -> Path:
        (path,) = self.l2_folder.glob(f"*{STATE.chunk_hashes[chunk].hex()}*.data")
        return path

    def assert_in_place(self, state: State = STATE) -> None:
        assert self.rank.differences(state) == []
        self.assert_nothing_astray()

    def assert_only_the_first_window_was_copied(self) -> None:
        self.server.wait_released()
        assert {each.chunk for each in self.rank.differences(STATE)} == AFTER_ONE_WINDOW
        self.assert_nothing_astray()

    def assert_nothing_astray(self) -> None:
        assert self.rank.null_block_is_empty()
        assert self.rank.cut_blocks_are_empty()


@contextmanager
def running_bench(
    geometry: Geometry, folder: Path, window: int | None, arguments: tuple[str, ...] = ()
) -> Iterator[Bench]:
    l2_folder = folder / "l2"
    config = ServerConfig(
        l2_folder,
        adapter=damage.adapter(l2_folder),
        l1_bytes=GIB,
        window_chunks=window,
        separate_object_groups=False,
        arguments=arguments,
        environment=plugin_environment(),
    )
    with (
        running_server(config, folder) as server,
        connected(server.ports.messages, Deployment(geometry), one_for_each, CUDA) as client,
    ):
        bench = Bench(geometry, server, client)
        bench.store()
        yield bench


geometries = pytest.mark.parametrize(
    "geometry", [DEEPSEEK_V4_FLASH_PAGED, PLAIN], ids=lambda geometry: geometry.name
)


@pytest.fixture(
    scope="module",
    params=[DEEPSEEK_V4_FLASH_PAGED, PLAIN],
    ids=lambda geometry: geometry.name,
)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp(request.param.name)
    with running_bench(request.param, folder, WINDOW) as started:
        yield started


def test_a_state_comes_back_through_windows(bench: Bench) -> None:
    bench.forget()

    assert bench.client.restore(STATE).chunks == STATE.chunks

    bench.assert_in_place()
    bench.server.wait_released()
    assert bench.server.restore_peak_bytes() == WINDOW * bench.geometry.staged_bytes
    assert set(bench.server.l2_files().values()) == {bench.geometry.object_bytes}


def test_windows_wait_for_a_busy_gpu(bench: Bench) -> None:
    # The wipe is behind other work. A server that copies before it loses what it
    # copied; one that stages the next window before its copy loses what it staged.
    bench.forget()
    keep_the_gpu_busy()
    bench.rank.wipe()

    bench.client.restore(STATE)

    bench.assert_in_place()


def test_a_missing_object_fails_one_restore(bench: Bench) -> None:
    damage.order(bench.object_of(LOST), damage.LOSE)
    bench.forget()

    failed = bench.client.begin(STATE)
    assert failed.found == STATE.chunks
    assert not all(failed.retrieved())
    bench.client.end(failed)
    bench.assert_only_the_first_window_was_copied()

    bench.forget()
    before_it = replace(STATE, chunks=LOST)
    bench.client.restore(before_it)
    bench.assert_in_place(before_it)

    bench.store()
    bench.forget()
    bench.client.restore(STATE)
    bench.assert_in_place()


def test_a_request_that_ends_is_restored_no_further(bench: Bench) -> None:
    bench.forget()

    with damage.held_load(bench.l2_folder, 2) as wait_until_held:
        begun = bench.client.begin(STATE)
        wait_until_held()
        bench.client.end(begun)

    assert not all(begun.retrieved())
    bench.assert_only_the_first_window_was_copied()


@geometries
def test_a_window_that_is_not_loaded_in_time_fails_the_restore(
    geometry: Geometry, tmp_path: Path
) -> None:
    with running_bench(geometry, tmp_path, WINDOW, TIMEOUT) as bench:
        bench.forget()
        with damage.held_load(bench.l2_folder, 2):
            begun = bench.client.begin(STATE)
            assert not all(begun.retrieved())
            bench.client.end(begun)
        bench.assert_only_the_first_window_was_copied()

        bench.forget()
        bench.client.restore(STATE)
        bench.assert_in_place()


@geometries
def test_without_windows_a_state_comes_back_in_one_piece(
    geometry: Geometry, tmp_path: Path
) -> None:
    with running_bench(geometry, tmp_path, window=None) as bench:
        bench.forget()

        assert bench.client.restore(STATE).chunks == STATE.chunks

        bench.assert_in_place()
