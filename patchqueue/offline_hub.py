"""A model hub cache made on the spot, so that upstream's tests stay offline.

vLLM's tests name models of the hub, of which they need the configuration and
sometimes a tokenizer, never the weights. This module writes both in the layout
of the hub's cache (``models--ORG--NAME/refs/main``, ``snapshots/REVISION/``).
The tokenizer is a byte-level one without merges: 256 bytes and four special
tokens. Nothing is downloaded.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]

SPECIAL_TOKENS = ("<pad>", "</s>", "<s>", "<unk>")

OPT_125M: Config = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "word_embed_proj_dim": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "torch_dtype": "float16",
}

OPT_350M: Config = {
    **OPT_125M,
    "do_layer_norm_before": False,
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "word_embed_proj_dim": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}

QWEN3_0_6B: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 28,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}

QWEN1_5_7B: Config = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "torch_dtype": "bfloat16",
}

MODELS: dict[str, Config] = {
    "facebook/opt-125m": OPT_125M,
    "facebook/opt-350m": OPT_350M,
    "Qwen/Qwen3-0.6B": QWEN3_0_6B,
    "Qwen/Qwen1.5-7B": QWEN1_5_7B,
}


def byte_alphabet() -> list[str]:
    """Return the printable character that stands for each of the 256 bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet = []
    shifted = 256
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(shifted))
            shifted += 1
    return alphabet


def _special_token(index: int, content: str) -> Config:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True, **flags}


def tokenizer() -> Config:
    """Return a byte-level tokenizer in the format of ``tokenizer.json``."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    tokens = [*SPECIAL_TOKENS, *byte_alphabet()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(*pair) for pair in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }


def tokenizer_config(max_length: int) -> Config:
    """Return the ``tokenizer_config.json`` that goes with :func:`tokenizer`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "bos_token": "<s>",
        "unk_token": "<unk>",
    }


def _write_model(cache: Path, name: str, config: Config) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(config["max_position_embeddings"]),
    }
    texts = {file: json.dumps(content, indent=1) for file, content in files.items()}
    revision = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:40]
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (snapshot / file).write_text(text, encoding="utf-8")
    refs = folder / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(revision, encoding="utf-8")


def build(cache: Path) -> None:
    """Write every model of :data:`MODELS` below ``cache``."""
    for name, config in MODELS.items():
        _write_model(cache, name, config)
