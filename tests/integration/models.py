"""Tiny random Llama models, made on the spot.

Weights are drawn with a standard deviation of about 1.5 / sqrt(fan_in) and the
output head is untied: greedy output then depends on the whole prompt, so a
token comparison notices KV that was restored wrongly. The tokenizer knows the
256 bytes and nothing else. Nothing is downloaded.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

FLOAT32_BYTES = 4
VOCABULARY = 256
END_OF_TEXT = 0
WEIGHT_GAIN = 1.5

Weights = NDArray[np.float32]
MatrixMaker = Callable[[int, int], Weights]

FULL = "full_attention"
SLIDING = "sliding_attention"


@dataclass(frozen=True)
class ModelShape:
    """The geometry of a model, and what its KV cache weighs."""

    name: str
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    kv_heads: int = 8
    head_size: int = 128
    hidden_size: int = 256
    feed_forward_size: int = 512
    max_tokens: int = 32768
    seed: int = 20260729

    @property
    def layer_kv_bytes(self) -> int:
        """Bytes of keys and values that one layer keeps for one token."""
        return 2 * self.kv_heads * self.head_size * FLOAT32_BYTES

    @property
    def token_kv_bytes(self) -> int:
        """Bytes of keys and values that all layers keep for one token."""
        return len(self.layer_types) * self.layer_kv_bytes


ONE_GROUP = ModelShape("one-group", layer_types=(FULL,) * 4)
"""One KV cache group: 32 KiB of KV a token."""

THREE_GROUPS = ModelShape(
    "three-groups", layer_types=(SLIDING, SLIDING, FULL) * 2, sliding_window=512
)
"""Three KV cache groups, of which two slide: two LMCache object groups."""


def write_model(folder: Path, shape: ModelShape) -> Path:
    """Write a model of this shape to folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(shape))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(shape))
    _byte_tokenizer().save(str(folder / "tokenizer.json"))
    save_file(_weights(shape), folder / "model.safetensors", {"format": "pt"})
    return folder


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _config(shape: ModelShape) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": len(shape.layer_types),
        "num_attention_heads": shape.kv_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.feed_forward_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": END_OF_TEXT,
    }
    if shape.sliding_window is not None:
        config["layer_types"] = list(shape.layer_types)
        config["sliding_window"] = shape.sliding_window
    return config


def _tokenizer_config(shape: ModelShape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_tokens,
    }


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _weights(shape: ModelShape) -> dict[str, Weights]:
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> Weights:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(WEIGHT_GAIN / columns**0.5)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, shape.hidden_size),
        "model.norm.weight": np.ones(shape.hidden_size, dtype=np.float32),
        "lm_head.weight": matrix(VOCABULARY, shape.hidden_size),
    }
    for layer in range(len(shape.layer_types)):
        weights |= _layer_weights(f"model.layers.{layer}", shape, matrix)
    return weights


def _layer_weights(name: str, shape: ModelShape, matrix: MatrixMaker) -> dict[str, Weights]:
    hidden = shape.hidden_size
    inner = shape.kv_heads * shape.head_size
    forward = shape.feed_forward_size
    return {
        f"{name}.input_layernorm.weight": np.ones(hidden, dtype=np.float32),
        f"{name}.self_attn.q_proj.weight": matrix(inner, hidden),
        f"{name}.self_attn.k_proj.weight": matrix(inner, hidden),
        f"{name}.self_attn.v_proj.weight": matrix(inner, hidden),
        f"{name}.self_attn.o_proj.weight": matrix(hidden, inner),
        f"{name}.post_attention_layernorm.weight": np.ones(hidden, dtype=np.float32),
        f"{name}.mlp.gate_proj.weight": matrix(forward, hidden),
        f"{name}.mlp.up_proj.weight": matrix(forward, hidden),
        f"{name}.mlp.down_proj.weight": matrix(hidden, forward),
    }
