"""An engine without a model: it registers KV cache, stores, looks up and retrieves.

It talks to a server as vLLM's connector does, through LMCache's own client. What it
stores, and what it expects to get back, is the content that follows from each
object's key.

A tensor may have fewer blocks than a state has chunks. Chunks then share blocks, in
turn, and each block is expected to hold the last of its chunks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import torch
from lmcache.v1.distributed.api import ipc_key_to_object_keys
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.multiprocess.transfer_context.worker_transfer import (
    LMCacheDrivenTransferContext,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

from tests.integration.content import Bytes, Content
from tests.integration.geometry import CHUNK_TOKENS, Geometry, Kind
from tests.integration.ports import HOST

SECONDS = 1800.0  # The largest states take minutes, on a busy machine many.
VOCABULARY = 100_000
NULL_BLOCK = 0  # LMCache takes it for absent, as vLLM does.

Blocks = Callable[[Kind], int]
"""How many blocks each tensor of a kind has, the null block aside."""

_instances = count(1)
_requests = count(1)


@dataclass(frozen=True)
class State:
    """A prompt. Those of one seed are beginnings of one another.

    Caches keep states of different salts apart.
    """

    chunks: int
    seed: int
    salt: str = ""

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        random = np.random.default_rng(self.seed)
        return tuple(random.integers(1, VOCABULARY, self.chunks * CHUNK_TOKENS).tolist())

    @cached_property
    def chunk_hashes(self) -> list[bytes]:
        """The hashes by which a server knows the chunks."""
        hashes: list[bytes] = TokenHasher(CHUNK_TOKENS).compute_chunk_hashes(list(self.tokens))
        return hashes


@dataclass(frozen=True)
class Deployment:
    """A model as a server knows it: its name, and over how many ranks it lies."""

    geometry: Geometry
    ranks: int = 1

    def key(self, state: State, request: str, rank: int | None) -> IPCCacheServerKey:
        """Return the key of a state for one rank, or for the scheduler."""
        return IPCCacheServerKey(
            model_name=self.geometry.name,
            world_size=self.ranks,
            worker_id=rank,
            token_ids=state.tokens,
            start=0,
            end=len(state.tokens),
            request_id=request,
            cache_salt=state.salt,
            num_kv_readers=1,
        )


@dataclass(frozen=True)
class Restored:
    """How many chunks were restored, and how long lookup and retrieve took."""

    chunks: int
    seconds: float


@dataclass(frozen=True)
class Attempt:
    """How many chunks were found, whether each rank got them, and how long it took."""

    found: int
    retrieved: tuple[bool, ...]
    seconds: float


@dataclass(frozen=True)
class Difference:
    """A chunk that is not in its blocks."""

    chunk: int
    kind: str


class Rank:
    """One rank: its blocks, and its registration with the server."""

    def __init__(self, port: int, deployment: Deployment, rank: int, blocks: Blocks) -> None:
        """Allocate the blocks and register them."""
        self._deployment = deployment
        self._rank = rank
        self._kinds = deployment.geometry.kinds
        self._blocks = [blocks(kind) for kind in self._kinds]
        self._content = Content(deployment.geometry.object_bytes)
        self._client = RequestClientFactory.create(f"tcp://{HOST}:{port}")
        self._context = LMCacheDrivenTransferContext(next(_instances), self._client)
        self._tensors = self._register()
        self._registered = True

    def close(self) -> None:
        """Give the registration and the blocks back."""
        self.leave()
        self._context.close()
        self._client.close()
        self._tensors.clear()

    def leave(self) -> None:
        """Give the registration back, as a rank does that ends."""
        if self._registered:
            self._registered = False
            self._context.unregister().result(SECONDS)

    def wipe(self) -> None:
        """Empty all blocks."""
        for tensors in self._tensors:
            for tensor in tensors:
                tensor.fill(0)

    def write(self, state: State) -> None:
        """Put a state into the blocks, as if it had been computed."""
        for chunk, made in self._objects(state):
            for parts, tensors, block in self._places(chunk, made):
                for part, tensor in zip(parts, tensors, strict=True):
                    tensor[block] = part

    def store(self, state: State) -> bool:
        """Have the server take a state out of the blocks."""
        stored: bool = self._context.submit_store(
            "", self._key(state, _request()), {}, *self._transfer(state), 1
        ).result(SECONDS)
        return stored

    def submit_retrieve(self, state: State, request: str) -> Callable[[float], bool]:
        """Have the server put a state into the blocks. The result waits for the end."""
        result: Callable[[float], bool] = self._context.submit_retrieve(
            request, self._key(state, request), {}, *self._transfer(state), 1
        ).result
        return result

    def differences(self, state: State) -> list[Difference]:
        """Return the chunks that are not in the blocks, of those that should be."""
        return [
            Difference(chunk, kind.name)
            for chunk, made in self._objects(state)
            for kind, blocks, (parts, tensors, block) in zip(
                self._kinds, self._blocks, self._places(chunk, made), strict=True
            )
            if chunk >= state.chunks - blocks
            and not all(
                np.array_equal(part, tensor[block])
                for part, tensor in zip(parts, tensors, strict=True)
            )
        ]

    def null_block_is_empty(self) -> bool:
        """Tell whether nothing was put into the null block."""
        return not any(tensor[NULL_BLOCK].any() for tensors in self._tensors for tensor in tensors)

    def _register(self) -> list[list[Bytes]]:
        tensors = [
            [_tensor(kind, blocks + 1) for _ in range(kind.tensors)]
            for kind, blocks in zip(self._kinds, self._blocks, strict=True)
        ]
        flat = [tensor for group in tensors for tensor in group]
        self._context.register(
            {f"layer.{index}": tensor for index, tensor in enumerate(flat)},
            self._deployment.geometry.name,
            self._deployment.ranks,
            1,
            SECONDS,
            engine_group_infos=self._groups(),
        )
        # Only now do the tensors lie in the memory that the server shares.
        return [[_as_bytes(tensor) for tensor in group] for group in tensors]

    def _groups(self) -> list[EngineGroupInfo]:
        indices = count()
        return [
            EngineGroupInfo(
                engine_group_id=group,
                layer_indices=tuple(next(indices) for _ in range(kind.tensors)),
                tokens_per_block=CHUNK_TOKENS,
            )
            for group, kind in enumerate(self._kinds)
        ]

    def _key(self, state: State, request: str) -> IPCCacheServerKey:
        return self._deployment.key(state, request, self._rank)

    def _transfer(self, state: State) -> tuple[list[list[int]], object]:
        block_ids = [
            [_block(chunk, blocks) for chunk in range(state.chunks)] for blocks in self._blocks
        ]
        return block_ids, self._context.create_recorded_event()

    def _objects(self, state: State) -> Iterator[tuple[int, Bytes]]:
        key = self._key(state, "")
        for chunk, made in enumerate(ipc_key_to_object_keys(key, state.chunk_hashes, [0])[0]):
            yield chunk, self._content.of(made.chunk_hash, made.kv_rank)

    def _places(self, chunk: int, made: Bytes) -> Iterator[tuple[Bytes, Sequence[Bytes], int]]:
        # An object is the tensors of the first kind, then those of the next.
        start = 0
        for kind, blocks, tensors in zip(self._kinds, self._blocks, self._tensors, strict=True):
            parts = made[start : start + kind.chunk_bytes].reshape(kind.tensors, kind.block_bytes)
            yield parts, tensors, _block(chunk, blocks)
            start += kind.chunk_bytes


class Client:
    """A scheduler and its ranks."""

    def __init__(self, port: int, deployment: Deployment, ranks: Sequence[Rank]) -> None:
        """Connect the scheduler."""
        self.ranks = ranks
        self._deployment = deployment
        self._scheduler = RequestClientFactory.create(f"tcp://{HOST}:{port}")

    def close(self) -> None:
        """Disconnect the scheduler; the ranks stay."""
        self._scheduler.close()

    def store(self, state: State) -> None:
        """Put a state into the blocks of every rank and have it stored."""
        for rank in self.ranks:
            rank.write(state)
            if not rank.store(state):
                raise AssertionError(f"the server did not store {state}")

    def restore(self, state: State) -> Restored:
        """Look a state up and have all ranks retrieve it at once.

        Raises:
            AssertionError: If a chunk is missing, or a rank did not get them.
        """
        attempt = self.attempt(state)
        if attempt.found != state.chunks:
            raise AssertionError(f"{attempt.found} of {state.chunks} chunks were found")
        if not all(attempt.retrieved):
            raise AssertionError(f"the server did not retrieve {state}")
        return Restored(attempt.found, attempt.seconds)

    def attempt(self, state: State) -> Attempt:
        """Look a state up and, if all of it is found, have all ranks retrieve it at once."""
        request, began = _request(), time.perf_counter()
        found = self._lookup(state, request)
        ranks = self.ranks if found == state.chunks else ()
        results = [rank.submit_retrieve(state, request) for rank in ranks]
        done = tuple(result(SECONDS) for result in results)
        attempt = Attempt(found, done, time.perf_counter() - began)
        self._scheduler.end_session(request).result(SECONDS)
        return attempt

    def _lookup(self, state: State, request: str) -> int:
        key = self._deployment.key(state, request, None)
        self._scheduler.lookup(key, self._deployment.ranks).result(SECONDS)
        found: int | None = self._scheduler.wait_prefetch_status(request, SECONDS).result()
        if found is None:
            raise AssertionError(f"no answer to the lookup of {state}")
        return found


@contextmanager
def connected(port: int, deployment: Deployment, blocks: Blocks) -> Iterator[Client]:
    """Register all ranks with the server at a port; give everything back at the end."""
    with ExitStack() as open_parts:
        ranks = []
        for number in range(deployment.ranks):
            rank = Rank(port, deployment, number, blocks)
            open_parts.callback(rank.close)
            ranks.append(rank)
        client = Client(port, deployment, ranks)
        open_parts.callback(client.close)
        yield client


def _tensor(kind: Kind, blocks: int) -> torch.Tensor:
    # All states are whole words, and a CPU copies words faster than bytes.
    words = torch.float32
    return torch.zeros((blocks, kind.states, kind.state_bytes // words.itemsize), dtype=words)


def _as_bytes(tensor: torch.Tensor) -> Bytes:
    array: Bytes = tensor.numpy().reshape(tensor.shape[0], -1).view(np.uint8)
    return array


def _block(chunk: int, blocks: int) -> int:
    return NULL_BLOCK + 1 + chunk % blocks


def _request() -> str:
    return f"request-{next(_requests)}"
