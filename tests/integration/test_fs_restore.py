"""A prefix goes to the file system and comes back, through real processes."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.models import ONE_GROUP
from tests.integration.server import ServerConfig
from tests.integration.stack import (
    Restore,
    Stack,
    Stored,
    random_prompt,
    refusal_of,
)

PREFIX_TOKENS = 2048
SUFFIX_TOKENS = 16  # Too few for a chunk: computed, never stored.
CHUNKS = 8  # 2,048 tokens in chunks of 256.
CHUNK_BYTES = 256 * ONE_GROUP.token_kv_bytes


@dataclass(frozen=True)
class RoundTrip:
    """A prompt computed and stored, then restored from L2."""

    stored: Stored
    restore: Restore


@pytest.fixture(scope="module")
def round_trip(stack: Stack) -> RoundTrip:
    prompt = random_prompt(PREFIX_TOKENS + SUFFIX_TOKENS, seed=1)
    return RoundTrip(stack.store(prompt, objects=CHUNKS), stack.restore(prompt))


def test_the_first_run_finds_nothing(round_trip: RoundTrip) -> None:
    assert round_trip.stored.completion.cached_tokens == 0


def test_l2_holds_a_whole_file_for_each_chunk(round_trip: RoundTrip) -> None:
    assert list(round_trip.stored.files.values()) == [CHUNK_BYTES] * CHUNKS


def test_l1_is_empty_before_the_restore(round_trip: RoundTrip) -> None:
    assert round_trip.restore.l1_before.used_bytes == 0


def test_every_object_comes_from_l2(round_trip: RoundTrip) -> None:
    assert round_trip.restore.tokens_found_in_l1 == 0
    assert round_trip.restore.tokens_found_in_l2 == PREFIX_TOKENS
    assert round_trip.restore.objects_loaded == CHUNKS


def test_vllm_reuses_the_whole_prefix(round_trip: RoundTrip) -> None:
    assert round_trip.restore.external_hits == PREFIX_TOKENS
    assert round_trip.restore.completion.cached_tokens == PREFIX_TOKENS


def test_the_server_reads_four_files_at_a_time(stack: Stack) -> None:
    assert "load_concurrency=4" in stack.server.process.log_text()


def test_greedy_output_equals_that_of_the_first_run(round_trip: RoundTrip) -> None:
    assert round_trip.restore.completion.tokens == round_trip.stored.completion.tokens


def test_greedy_output_notices_one_stale_chunk(stack: Stack) -> None:
    # The check of the check. Chunks that trade places would go unnoticed: to
    # attention the KV of a prefix is a set, its positions are part of the keys.
    prompt = random_prompt(PREFIX_TOKENS + SUFFIX_TOKENS, seed=2)
    stored = stack.store(prompt, objects=CHUNKS)
    folder = stack.server.config.l2_folder
    stale, other, *_ = sorted(stored.files)
    shutil.copyfile(folder / other, folder / stale)

    restore = stack.restore(prompt)

    assert restore.external_hits == PREFIX_TOKENS
    assert restore.completion.tokens != stored.completion.tokens


@pytest.mark.usefixtures("round_trip")
def test_a_restore_leaves_nothing_in_l1(stack: Stack) -> None:
    stack.server.wait_released()


def test_the_server_refuses_a_concurrency_of_zero(tmp_path: Path) -> None:
    variable = "LMCACHE_FS_LOAD_CONCURRENCY"
    config = ServerConfig(l2_folder=tmp_path / "l2", environment={variable: "0"})

    code, output = refusal_of(config, tmp_path)

    assert code != 0
    assert variable in output
