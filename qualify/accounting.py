"""Print how much host memory a restore takes, for any model that vLLM knows.

    python -m qualify.accounting MODEL... [--tp N...] [--window W...]

MODEL is a folder with a config.json, or such a file; no weights are read. Per rank of
each model: the tensors that vLLM registers with LMCache, the bytes of a chunk of tokens
in them, the bytes of L1 that the chunk takes, and the L1 of windows of W chunks.

The caches are those of vLLM's own layers (`accounting_specs`), the sizes of a chunk's
objects those that LMCache computes on a GPU: of a layer that attends to fewer tokens
than a chunk has, only those are kept. A server on a CPU keeps the whole chunk.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.accounting_specs import (
    AccountingError,
    Deployment,
    kv_cache_specs,
    quiet,
    read_config,
)

CHUNK_TOKENS = 256
WINDOWS = (8, 32)
MIB = 2**20


@dataclass(frozen=True)
class Registration:
    """One tensor that vLLM registers, and what of a chunk LMCache keeps of it.

    group tells tensors apart that LMCache stores in different objects.
    """

    name: str
    bytes: int
    group: tuple[bool, int]


@dataclass(frozen=True)
class Account:
    """What one rank keeps of a chunk."""

    registrations: tuple[Registration, ...]
    alignment: int
    separate_object_groups: bool = True

    @property
    def tensors(self) -> int:
        """How many tensors a rank registers."""
        return len(self.registrations)

    @property
    def content_bytes(self) -> int:
        """Bytes of a chunk."""
        return sum(each.bytes for each in self.registrations)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of L1 that the objects of a chunk take."""
        return sum(-(-size // self.alignment) * self.alignment for size in self._objects())

    def window_bytes(self, chunks: int) -> int:
        """Return the bytes of L1 that a window of so many chunks takes."""
        return chunks * self.chunk_bytes

    def _objects(self) -> Iterable[int]:
        if not self.separate_object_groups:
            return [self.content_bytes]
        sizes: dict[tuple[bool, int], int] = {}
        for each in self.registrations:
            sizes[each.group] = sizes.get(each.group, 0) + each.bytes
        return sizes.values()


def account(
    config: Mapping[str, Any],
    deployment: Deployment,
    chunk_tokens: int = CHUNK_TOKENS,
    *,
    separate_object_groups: bool = True,
) -> Account:
    """Return what a rank of the model keeps of a chunk.

    Raises:
        AccountingError: It cannot be computed, or LMCache does not serve it.
    """
    specs = kv_cache_specs(config, deployment)
    registrations = tuple(
        _registration(name, spec, chunk_tokens)
        for name, spec in specs.items()
        if spec.prefix_cacheable  # LMCache leaves out what vLLM never reuses.
    )
    if not registrations:
        raise AccountingError(f"{config['architectures'][0]} keeps no KV cache")
    return Account(registrations, l1_alignment(), separate_object_groups)


def l1_alignment() -> int:
    """Return what LMCache's L1 rounds the size of an object up to a multiple of."""
    from lmcache.v1.distributed.config import L1MemoryManagerConfig

    alignment: int = L1MemoryManagerConfig(size_in_bytes=0, use_lazy=False).align_bytes
    return alignment


def _registration(name: str, spec: Any, chunk_tokens: int) -> Registration:
    from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec, MambaSpec

    if isinstance(spec, MambaSpec):
        return _recurrent(name, spec, chunk_tokens)
    if not isinstance(spec, AttentionSpec) or isinstance(spec, CrossAttentionSpec):
        raise AccountingError(f"LMCache does not serve {type(spec).__name__} ({name})")
    window = getattr(spec, "sliding_window", None) if _slides(spec) else None
    states = spec.get_num_kernel_states(min(chunk_tokens, window or chunk_tokens))
    size = spec.num_heads * states * spec.state_content_size_bytes
    return Registration(name, size, (False, -(-window // chunk_tokens) if window else -1))


def _slides(spec: Any) -> bool:
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return isinstance(spec, SlidingWindowSpec)  # A full spec may remember its window.


def _recurrent(name: str, spec: Any, chunk_tokens: int) -> Registration:
    """Return one page, padding included: the state after the chunk's last block."""
    if spec.mamba_cache_mode not in ("align", "all"):
        raise AccountingError(
            f"LMCache does not serve recurrent state without snapshots ({name}: "
            f"mamba cache mode {spec.mamba_cache_mode!r})"
        )
    if chunk_tokens % spec.block_size:
        raise AccountingError(
            f"chunks of {chunk_tokens} tokens are not whole blocks of {name}, which have "
            f"{spec.block_size}: try --chunk-size {spec.block_size}"
        )
    return Registration(name, spec.page_size_bytes, (True, -(-spec.block_size // chunk_tokens)))


def table(rows: Sequence[tuple[str, int, Account]], windows: Sequence[int]) -> str:
    """Return a Markdown table of (name, TP, account)."""
    head = ["model", "TP", "tensors", "bytes per chunk", "L1 bytes per chunk"]
    head += [f"W={chunks}" for chunks in windows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, ranks, each in rows:
        memory = [f"{each.window_bytes(chunks) / MIB:,.2f} MiB" for chunks in windows]
        figures = [f"{each.content_bytes:,}", f"{each.chunk_bytes:,}"]
        lines.append([name, str(ranks), str(each.tensors), *figures, *memory])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _parser() -> argparse.ArgumentParser:
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser("qualify.accounting", description=lines[0])
    add = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL", help="a model's folder or config.json")
    add("--tp", nargs="+", type=_positive, default=[1], help="tensor parallel size (1)")
    add("--window", nargs="+", type=_positive, default=WINDOWS, help="W, in chunks (8 32)")
    add("--chunk-size", type=_positive, default=CHUNK_TOKENS, help="LMCache's, tokens (256)")
    add("--dtype", default="auto", help="vLLM's flag of the same name (auto)")
    add("--kv-cache-dtype", default="auto", help="vLLM's flag of the same name (auto)")
    add("--draft-layers", type=int, default=0, help="DeepSeek-V4: layers of MTP drafts (0)")
    add(
        "--one-object-per-chunk",
        action="store_true",
        help="the server runs without --separate-object-groups",
    )
    return parser


def _name(model: Path) -> str:
    return model.parent.resolve().name if model.name == "config.json" else model.resolve().stem


def rows(options: argparse.Namespace) -> list[tuple[str, int, Account]]:
    """Return an account of each model with each tensor parallel size."""
    found = []
    for model in options.models:
        config = read_config(model)
        for ranks in options.tp:
            deployment = Deployment(
                ranks, options.dtype, options.kv_cache_dtype, options.draft_layers
            )
            each = account(
                config,
                deployment,
                options.chunk_size,
                separate_object_groups=not options.one_object_per_chunk,
            )
            found.append((_name(model), ranks, each))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; or a message, and return 1."""
    options = _parser().parse_args(arguments)
    quiet()
    try:
        print(table(rows(options), options.window))
    except AccountingError as error:
        print(f"qualify.accounting: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
