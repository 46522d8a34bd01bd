"""vLLM's real scheduler over the scripted connector, built without a worker."""

from functools import cache
from pathlib import Path

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.faults.kv_memory import Groups
from tests.faults.scripted_connector import ScriptedConnector

CONNECTOR = ScriptedConnector.__name__
MAX_TOKENS = 4096


@cache
def vllm_config(model: Path, policy: str, block_size: int, batched_tokens: int) -> VllmConfig:
    """Return the configuration of an engine with the scripted connector."""
    init_none_hash(sha256)
    cache_config = CacheConfig(block_size=block_size, enable_prefix_caching=True)
    cache_config.kv_cache_layout = "LBNHC"  # What the engine core would resolve.
    return VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="float32", max_model_len=MAX_TOKENS),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=batched_tokens,
            max_model_len=MAX_TOKENS,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            disable_hybrid_kv_cache_manager=False,
            async_scheduling=False,
        ),
        cache_config=cache_config,
        kv_transfer_config=KVTransferConfig(
            kv_connector=CONNECTOR,
            kv_connector_module_path=ScriptedConnector.__module__,
            kv_role="kv_both",
            kv_load_failure_policy=policy,
        ),
        device_config=DeviceConfig("cpu"),
    )


def make_scheduler(config: VllmConfig, groups: Groups, num_blocks: int) -> Scheduler:
    """Return a scheduler whose model has these KV cache groups."""
    config.cache_config.num_gpu_blocks = num_blocks
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{number}"], _spec(window, groups.block_size))
                for number, window in enumerate(groups.windows)
            ],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=groups.block_size,
        log_stats=True,
    )


def make_request(name: str, prompt: list[int], new_tokens: int, block_size: int) -> Request:
    """Return a request that ends after new_tokens, whatever they are."""
    sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=get_request_block_hasher(block_size, sha256),
    )


def _spec(window: int | None, block_size: int) -> KVCacheSpec:
    if window is None:
        return FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        sliding_window=window,
    )
