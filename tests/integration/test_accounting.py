"""What the accounting computes from config.json is what a real server registers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qualify.experiments.registered import REGISTERED, account_row
from tests.integration.engine import EngineConfig
from tests.integration.fixtures import ModelMaker
from tests.integration.models import ONE_GROUP, THREE_GROUPS
from tests.integration.server import ServerConfig
from tests.integration.stack import Stack, random_prompt, running_stack

WINDOW_CHUNKS = 5
RANKS = 2
CHUNK_TOKENS = 256


def accounted(model: Path, *flags: str) -> tuple[list[int], str]:
    """Return the integers of the command's only row, and its last column."""
    _name, *figures, memory = account_row(model, "--dtype", "float32", *flags)
    return [int(each.replace(",", "")) for each in figures], memory


@pytest.fixture(scope="module")
def windowed(model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("accounting")
    server = ServerConfig(folder / "l2", window_chunks=WINDOW_CHUNKS)
    engine = EngineConfig(model(THREE_GROUPS), ranks=RANKS)
    with running_stack(server, engine, folder) as stack:
        yield stack


def test_the_window_of_a_rank_is_what_the_server_registers(
    windowed: Stack, model: ModelMaker
) -> None:
    figures, memory = accounted(
        model(THREE_GROUPS), "--tp", str(RANKS), "--window", str(WINDOW_CHUNKS)
    )

    found = REGISTERED.findall(windowed.server.process.log_text())
    ranks, tensors, _content, chunk = figures
    assert found == [(str(WINDOW_CHUNKS * chunk), str(chunk))] * RANKS
    assert (ranks, tensors) == (RANKS, len(THREE_GROUPS.layer_types))
    assert memory == f"{WINDOW_CHUNKS * chunk / 2**20:,.2f} MiB"


def test_a_chunk_is_as_large_as_its_file(stack: Stack, model: ModelMaker) -> None:
    stored = stack.store(random_prompt(CHUNK_TOKENS + 16, seed=71), objects=1)

    (_ranks, _tensors, content, _chunk), _memory = accounted(model(ONE_GROUP), "--window", "1")

    assert list(stored.files.values()) == [content]
