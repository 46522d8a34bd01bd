"""States of the paper's model and sizes, through a real server with 1 GiB of L1.

There is no model: a client registers the tensors of DeepSeek-V4-Flash and restores
states whose bytes follow from their keys. Up to 31 GiB come from an L2 that makes
each object on the spot (`made_objects`); a smaller state is stored and restored
through real files.

The destination of a large state is small: most tensors have a few blocks only, in
which the chunks follow one another. The last chunks are compared in full. Of every
chunk, twenty tensors have blocks of their own and are compared.

The rows that take longest are marked: `nox -s integration -- -m paper` runs them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lmcache.utils import EngineType
from lmcache.v1.gpu_connector.utils import normalize_and_discover_per_layer_formats
from lmcache.v1.kv_layer_groups import KVLayerGroupsManager
from lmcache.v1.multiprocess.group_view import engine_group_layer_indices

from tests.integration import made_objects
from tests.integration.client import (
    Blocks,
    Client,
    Deployment,
    State,
    connected,
    engine_groups,
    kv_tensor,
)
from tests.integration.devices import CPU
from tests.integration.environment import plugin_environment
from tests.integration.geometry import (
    CHUNK_TOKENS,
    DEEPSEEK_V4_FLASH,
    DEEPSEEK_V4_FLASH_PAGED,
    Geometry,
    Kind,
)
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import GIB, MIB
from tests.integration.watching import watched

CHUNK_BYTES = 16_408_576  # The paper's coefficient.
LARGEST = 2047

SHARED_BLOCKS = 13  # Divides no window: the same place in the next is another block.
SMALL_CHUNK_BYTES = 64 * 1024

FILE_WINDOW, FILE_CHUNKS, FILE_RANKS = 8, 22, 2  # Windows of 8, 8 and 6 chunks.

paper = pytest.mark.paper


def shared(kind: Kind) -> int:
    return LARGEST if kind.chunk_bytes <= SMALL_CHUNK_BYTES else SHARED_BLOCKS


def unshared(_kind: Kind) -> int:
    return FILE_CHUNKS


def config(folder: Path, window: int) -> ServerConfig:
    # One object holds all groups of a chunk, as in the paper and by default.
    return ServerConfig(
        folder / "l2", l1_bytes=GIB, window_chunks=window, separate_object_groups=False
    )


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LMCacheServer]:
    """Return a server with windows of so many chunks, over objects that are made."""
    folder = tmp_path_factory.mktemp("made")
    settings = replace(
        config(folder, request.param),
        adapter=made_objects.adapter(DEEPSEEK_V4_FLASH.object_bytes),
        environment=plugin_environment(),
    )
    with running_server(settings, folder) as started:
        yield started


@contextmanager
def connected_to(
    server: LMCacheServer, blocks: Blocks = shared, ranks: int = 1
) -> Iterator[Client]:
    with connected(server.ports.messages, Deployment(DEEPSEEK_V4_FLASH, ranks), blocks) as client:
        yield client


def windows(count: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [count], indirect=True)


def assert_peak(server: LMCacheServer, chunks: int, mib: float) -> None:
    """Restore a state and compare its peak with an exact figure."""
    state = State(chunks, seed=chunks)
    with connected_to(server) as client:
        with watched(lambda: server.l1().used_bytes) as used:
            assert client.restore(state).chunks == chunks
        assert_in_place(client, state)
    assert server.l1_capacity_bytes() == GIB
    assert server.restore_peak_bytes() == mib * MIB
    assert 0 < used.largest <= mib * MIB
    server.wait_released()


def assert_in_place(client: Client, state: State) -> None:
    for rank in client.ranks:
        assert rank.differences(state) == []
        assert rank.null_block_is_empty()


def test_the_geometry_has_the_papers_figures() -> None:
    geometry = DEEPSEEK_V4_FLASH

    assert geometry.tensors == 167
    assert geometry.object_bytes == 16_406_080
    assert geometry.staged_bytes == CHUNK_BYTES
    assert geometry.staged_bytes * 1024 == 16_802_381_824  # Its whole plan of 256K tokens.


@pytest.mark.parametrize(
    ("geometry", "kept"),
    [
        (DEEPSEEK_V4_FLASH, [(1, 1)] * 7),
        (DEEPSEEK_V4_FLASH_PAGED, [(4, 2), *[(1, 1)] * 3, (64, 2), (64, 2), (32, 16)]),
    ],
    ids=["cut", "paged"],
)
def test_lmcache_makes_objects_of_the_papers_size(
    geometry: Geometry, kept: list[tuple[int, int]]
) -> None:
    groups = engine_groups(geometry)
    tensors, formats = normalize_and_discover_per_layer_formats(
        [kv_tensor(kind, 1, CPU.name) for kind in geometry.kinds for _ in range(kind.tensors)],
        engine_group_layer_indices(groups),
        EngineType.VLLM,
    )

    manager = KVLayerGroupsManager(tensors, formats, groups, CHUNK_TOKENS)

    slots = [manager.get_slots_per_chunk_in_sw(group) for group in range(7)]
    blocks = [
        tuple(
            manager.calculate_num_blocks(group, tokens)
            for tokens in (CHUNK_TOKENS, manager.get_subchunk_sw_size_tokens(group))
        )
        for group in range(7)
    ]
    assert slots == [kind.states for kind in DEEPSEEK_V4_FLASH.kinds]
    assert blocks == kept
    assert geometry.object_bytes == DEEPSEEK_V4_FLASH.object_bytes


@windows(32)
@pytest.mark.parametrize(
    "chunks",
    [
        128,
        256,
        pytest.param(512, marks=paper),
        pytest.param(1024, marks=paper),
        pytest.param(1536, marks=paper),
        LARGEST,
    ],
)
def test_states_of_all_sizes_peak_alike(server: LMCacheServer, chunks: int) -> None:
    assert_peak(server, chunks, mib=500.75)


@pytest.mark.parametrize(
    ("server", "mib"),
    [
        pytest.param(8, 125.1875, marks=paper),
        pytest.param(16, 250.375, marks=paper),
        pytest.param(64, 1001.5, marks=paper),
    ],
    indirect=["server"],
)
def test_the_peak_is_proportional_to_the_window(server: LMCacheServer, mib: float) -> None:
    assert_peak(server, 1024, mib)


@paper
@windows(4)
def test_the_largest_state_is_five_hundred_times_its_peak(server: LMCacheServer) -> None:
    assert_peak(server, LARGEST, mib=62.59375)
    assert LARGEST * DEEPSEEK_V4_FLASH.object_bytes > 500 * 62.59375 * MIB


@windows(8)
def test_ranks_that_restore_at_once_share_one_window(server: LMCacheServer) -> None:
    state = State(24, seed=1)
    with connected_to(server, ranks=2) as client:
        assert client.restore(state).chunks == state.chunks
        assert_in_place(client, state)
    assert server.restore_peak_bytes() == 8 * CHUNK_BYTES


@windows(8)
def test_the_comparison_notices_stale_chunks(server: LMCacheServer) -> None:
    # The check of the check: two chunks of another state lie where these begin.
    state, other = State(SHARED_BLOCKS + 5, seed=1), State(2, seed=2)
    small = {kind.name for kind in DEEPSEEK_V4_FLASH.kinds if shared(kind) == LARGEST}
    with connected_to(server) as client:
        (rank,) = client.ranks
        client.restore(state)
        rank.write(other)
        differences = rank.differences(state)

    assert {each.chunk for each in differences if each.kind in small} == {0, 1}
    assert {each.chunk for each in differences if each.kind not in small} == {
        SHARED_BLOCKS,
        SHARED_BLOCKS + 1,
    }


def test_a_state_comes_back_from_real_files(tmp_path: Path) -> None:
    state = State(FILE_CHUNKS, seed=1)
    with (
        running_server(config(tmp_path, FILE_WINDOW), tmp_path) as server,
        connected_to(server, unshared, FILE_RANKS) as client,
    ):
        client.store(state)
        server.wait_stored(FILE_CHUNKS * FILE_RANKS)
        server.clear_l1()
        for rank in client.ranks:
            rank.wipe()

        assert client.restore(state).chunks == FILE_CHUNKS

        assert_in_place(client, state)
        assert set(server.l2_files().values()) == {DEEPSEEK_V4_FLASH.object_bytes}
        assert server.restore_peak_bytes() == FILE_WINDOW * CHUNK_BYTES
