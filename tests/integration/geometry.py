"""What an engine keeps of one chunk of tokens on one rank, tensor by tensor.

DEEPSEEK_V4_FLASH is the registration of the paper, MTP off, derived from the model's
layers; PLAIN is a model with one kind of state.

A chunk of a sliding window group keeps its last states only: later tokens do not
look further back. On a GPU LMCache cuts the chunk itself: DEEPSEEK_V4_FLASH_PAGED has
the blocks that vLLM gives it. On a CPU it does not, so the tensors of DEEPSEEK_V4_FLASH
are registered with what is left after the cut. The objects are the same.
"""

from dataclasses import dataclass, replace

CHUNK_TOKENS = 256

L1_ALIGNMENT = 4096
"""L1 rounds the size of every object up to a multiple of this."""


@dataclass(frozen=True)
class Kind:
    """Tensors of one shape. Each keeps so many states of a chunk, in its last blocks."""

    name: str
    tensors: int
    states: int
    state_bytes: int
    block_tokens: int = CHUNK_TOKENS
    kept_blocks: int = 1

    @property
    def chunk_blocks(self) -> int:
        """Blocks that a chunk takes in one tensor, the kept ones included."""
        return CHUNK_TOKENS // self.block_tokens

    @property
    def window_tokens(self) -> int:
        """Tokens of the sliding window, -1 if everything is kept."""
        return -1 if self.kept_blocks == self.chunk_blocks else self.kept_blocks * self.block_tokens

    @property
    def block_states(self) -> int:
        """States in one block."""
        return self.states // self.kept_blocks

    @property
    def chunk_bytes(self) -> int:
        """Bytes that all tensors of the kind keep of a chunk."""
        return self.tensors * self.states * self.state_bytes


@dataclass(frozen=True)
class Geometry:
    """All kinds of tensors of a model."""

    name: str
    kinds: tuple[Kind, ...]

    @property
    def tensors(self) -> int:
        """How many tensors an engine registers."""
        return sum(kind.tensors for kind in self.kinds)

    @property
    def object_bytes(self) -> int:
        """Bytes of the object that holds one chunk."""
        return sum(kind.chunk_bytes for kind in self.kinds)

    @property
    def staged_bytes(self) -> int:
        """Bytes of L1 that the object takes."""
        return -(-self.object_bytes // L1_ALIGNMENT) * L1_ALIGNMENT


# Layers by compression ratio: two without compression, then 4 and 128 in turn.
_RATIOS = (0, 0, *(4, 128) * 20, 4)
_DENSE, _SPARSE = _RATIOS.count(4), _RATIOS.count(128)
_WINDOW = 128  # Of attention to the uncompressed keys, in every layer.

_FLOAT = 4
_HEAD, _INDEXER_HEAD = 512, 128
# fp8_ds_mla: 448 values without position, 64 with it in 16 bit, 8 bytes of scales.
_KEY = 448 + 2 * 64 + 8
_INDEXER_KEY = _INDEXER_HEAD + _FLOAT  # fp8 values and one scale.


def _compressors(name: str, layers: int, head: int, ratio: int) -> Kind:
    """Return the sums and scores of the tokens that will become a compressor's next key.

    Keys of ratio 4 overlap: each is made from twice as many tokens, in two parts.
    """
    overlap = 2 if ratio == 4 else 1
    return Kind(name, layers, overlap * ratio, 2 * overlap * head * _FLOAT)


DEEPSEEK_V4_FLASH = Geometry(
    "deepseek-v4-flash",
    (
        Kind("sliding keys", len(_RATIOS), _WINDOW, _KEY),
        Kind("keys, ratio 4", _DENSE, CHUNK_TOKENS // 4, _KEY),
        Kind("keys, ratio 128", _SPARSE, CHUNK_TOKENS // 128, _KEY),
        Kind("indexer keys", _DENSE, CHUNK_TOKENS // 4, _INDEXER_KEY),
        _compressors("compressors, ratio 4", _DENSE, _HEAD, ratio=4),
        _compressors("indexer compressors", _DENSE, _INDEXER_HEAD, ratio=4),
        _compressors("compressors, ratio 128", _SPARSE, _HEAD, ratio=128),
    ),
)

# Tokens in a block, and blocks that a chunk keeps, of each sliding window.
_PAGES = {
    "sliding keys": (64, 2),
    "compressors, ratio 4": (4, 2),
    "indexer compressors": (4, 2),
    "compressors, ratio 128": (8, 16),
}


def _paged(kind: Kind) -> Kind:
    block_tokens, kept_blocks = _PAGES.get(kind.name, (CHUNK_TOKENS, 1))
    return replace(kind, block_tokens=block_tokens, kept_blocks=kept_blocks)


DEEPSEEK_V4_FLASH_PAGED = replace(
    DEEPSEEK_V4_FLASH, kinds=tuple(_paged(kind) for kind in DEEPSEEK_V4_FLASH.kinds)
)

PLAIN = Geometry("plain", (Kind("keys and values", 4, CHUNK_TOKENS, 8192),))
"""8 MiB a chunk, like the tests' ONE_GROUP model."""
