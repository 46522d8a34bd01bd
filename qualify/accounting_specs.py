"""Which KV caches vLLM gives a model, from its config.json alone.

vLLM itself builds the model's layers, on the meta device: without weights, and as one
rank of the wanted tensor parallel size. Each layer then says what it keeps.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


class AccountingError(Exception):
    """A model whose KV cache cannot be computed; the message is for the user."""


@dataclass(frozen=True)
class Deployment:
    """How vLLM is to run the model. draft_layers: of DeepSeek-V4's MTP."""

    tensor_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    draft_layers: int = 0


def read_config(model: Path) -> dict[str, Any]:
    """Return the config.json that model is, or is the folder of.

    Raises:
        AccountingError: There is none, or it names no architecture.
    """
    path = model / "config.json" if model.is_dir() else model
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AccountingError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise AccountingError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict) or not config.get("architectures"):
        raise AccountingError(f"{path} names no architectures: not the config.json of a model")
    return config


def kv_cache_specs(config: Mapping[str, Any], deployment: Deployment) -> dict[str, Any]:
    """Return vLLM's KV cache spec of each layer of one rank that keeps anything.

    Raises:
        AccountingError: vLLM does not know the architecture, cannot split it in so many
            ranks, or cannot build it on this machine.
    """
    _check_known(config)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        try:
            engine = _engine_config(config, deployment, Path(folder))
            undo.enter_context(_as_one_rank(engine, Path(folder)))
            _build_layers(engine, deployment)
            return _collect(engine)
        except AccountingError:
            raise
        except Exception as error:  # Any vLLM model may fail in its own way.
            name = config["architectures"][0]
            tp = deployment.tensor_parallel_size
            reason = _first_line(error)
            raise AccountingError(f"vLLM cannot build {name} with TP={tp}: {reason}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ == "ValidationError" and len(lines) > 1:
        return lines[1].removeprefix("Value error, ").split(" [type=")[0]
    return lines[0] if lines else type(error).__name__


def _check_known(config: Mapping[str, Any]) -> None:
    from vllm.model_executor.models import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    if not set(config["architectures"]) & set(known):
        from vllm import __version__

        names = ", ".join(config["architectures"])
        raise AccountingError(f"vLLM {__version__} knows no architecture {names}")


def _engine_config(config: Mapping[str, Any], deployment: Deployment, folder: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.torch_utils import get_kv_cache_quant_algo_string

    # How weights are quantized matters only where it settles the type of the KV cache.
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(plain), encoding="utf-8")
    kv_cache_dtype = deployment.kv_cache_dtype
    quantization = config.get("quantization_config") or {}
    if kv_cache_dtype == "auto":
        kv_cache_dtype = get_kv_cache_quant_algo_string(quantization) or "auto"
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        enable_prefix_caching=True,
        tensor_parallel_size=deployment.tensor_parallel_size,
        dtype=deployment.dtype,
        kv_cache_dtype=kv_cache_dtype,
    ).create_engine_config()


@contextmanager
def _as_one_rank(engine: Any, folder: Path) -> Iterator[None]:
    """Make vLLM's layers believe that they are one of several ranks, in this process."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as moe

    with ExitStack() as undo:
        undo.enter_context(set_current_vllm_config(engine))
        undo.callback(parallel_state.destroy_distributed_environment)
        undo.callback(parallel_state.destroy_model_parallel)
        parallel_state.init_distributed_environment(
            world_size=1,
            rank=0,
            distributed_init_method=f"file://{folder / 'rendezvous'}",
            local_rank=0,
            backend="gloo",
        )
        parallel_state.initialize_model_parallel(1)
        ranks = engine.parallel_config.tensor_parallel_size
        undo.enter_context(mock.patch.object(parallel_state.get_tp_group(), "world_size", ranks))
        undo.enter_context(mock.patch.object(moe, "select_unquantized_moe_backend", _any_experts))
        if not torch.cuda.is_available():
            # Layers make these without recording anything; a CPU's torch cannot.
            undo.enter_context(mock.patch.object(torch.cuda, "Event", object))
        yield


def _any_experts(moe_config: Any) -> tuple[Any, Any]:
    """Return a kernel for experts; they never run, so none need support how they are split."""
    from vllm.model_executor.layers.fused_moe.oracle import unquantized

    backend = unquantized._get_priority_backends(moe_config)[0]
    return backend, unquantized.backend_to_kernel_cls(backend)[0]


def _build_layers(engine: Any, deployment: Deployment) -> None:
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(engine.model_config.dtype), torch.device("meta"):
        model = initialize_model(engine)
        if deployment.draft_layers:
            _add_draft_layers(engine, model, deployment.draft_layers)
    current_platform.update_block_size_for_backend(engine)


def _add_draft_layers(engine: Any, model: Any, count: int) -> None:
    """Add the attention of drafts: layers after the last one of the model."""
    first = engine.model_config.hf_config.num_hidden_layers
    if engine.model_config.hf_config.model_type != "deepseek_v4":
        raise AccountingError("draft layers are known for DeepSeek-V4 only")
    attention = type(model.model.layers[-1].attn)
    for layer in range(first, first + count):
        attention(engine, prefix=f"model.layers.{layer}.attn")


def _collect(engine: Any) -> dict[str, Any]:
    """Return the specs as the model runner collects them."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.utils import customize_attention_spec

    specs: dict[str, Any] = {}
    layers: dict[str, Any] = get_layers_from_vllm_config(engine, AttentionLayerBase)
    for name, layer in layers.items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue  # It uses the cache of another layer.
        spec = layer.get_kv_cache_spec(engine)
        if isinstance(spec, AttentionSpec):
            spec = customize_attention_spec(layer.get_attn_backend(), spec)
        if spec is not None:
            specs[name] = spec
    return specs


def quiet() -> None:
    """Keep vLLM's and LMCache's log off the terminal; to be called before they are imported."""
    for name in ("VLLM_LOGGING_LEVEL", "LMCACHE_LOG_LEVEL"):
        os.environ.setdefault(name, "ERROR")
