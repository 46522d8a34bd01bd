"""A prefix goes from the GPU to the file system and comes back."""

from collections.abc import Iterator

import pytest

from tests.integration.devices import CUDA
from tests.integration.engine import EngineConfig
from tests.integration.fixtures import ModelMaker
from tests.integration.models import ONE_GROUP
from tests.integration.server import ServerConfig
from tests.integration.stack import Stack, random_prompt, running_stack

PREFIX_TOKENS = 2048
SUFFIX_TOKENS = 16  # Too few for a chunk: computed, never stored.
CHUNKS = 8  # 2,048 tokens in chunks of 256.


@pytest.fixture(scope="module")
def gpu_stack(model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("gpu-stack")
    server = ServerConfig(l2_folder=folder / "l2", environment={"LMCACHE_FS_LOAD_CONCURRENCY": "4"})
    engine = EngineConfig(model(ONE_GROUP), device=CUDA)
    with running_stack(server, engine, folder) as stack:
        yield stack


def test_a_prefix_is_restored_to_the_gpu(gpu_stack: Stack) -> None:
    prompt = random_prompt(PREFIX_TOKENS + SUFFIX_TOKENS, seed=1)
    stored = gpu_stack.store(prompt, objects=CHUNKS)

    restore = gpu_stack.restore(prompt)

    assert restore.l1_before.used_bytes == 0
    assert restore.objects_loaded == CHUNKS
    assert restore.external_hits == PREFIX_TOKENS
    assert restore.completion.tokens == stored.completion.tokens
