"""An engine without a model: it registers KV cache, stores, looks up and retrieves.

It talks to a server as vLLM's connector does, through LMCache's own client. What it
stores, and what it expects to get back, is the content that follows from each
object's key.

A tensor may have room for fewer chunks than a state has. Chunks then share blocks, in
turn, and the blocks are expected to hold the last of their chunks.
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

from tests.integration.content import Content
from tests.integration.devices import CPU, Device
from tests.integration.geometry import CHUNK_TOKENS, Geometry, Kind
from tests.integration.ports import HOST

SECONDS = 1800.0  # The largest states take minutes, on a busy machine many.
VOCABULARY = 100_000
NULL_BLOCK = 0  # LMCache takes it for absent, as vLLM does.

Blocks = Callable[[Kind], int]
"""For how many chunks each tensor of a kind has blocks, the null block aside."""

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
class Begun:
    """How many chunks were found, and what each rank waits for if they were all."""

    request: str
    found: int
    results: tuple[Callable[[float], bool], ...]

    def retrieved(self) -> tuple[bool, ...]:
        """Wait for the ranks, and tell whether each got all chunks."""
        return tuple(result(SECONDS) for result in self.results)


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

    def __init__(
        self, port: int, deployment: Deployment, rank: int, blocks: Blocks, device: Device
    ) -> None:
        """Allocate the blocks on a device and register them."""
        self._deployment = deployment
        self._rank = rank
        self._device = device.name
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
                tensor.zero_()

    def write(self, state: State) -> None:
        """Put a state into the blocks, as if it had been computed."""
        for chunk, made in self._objects(state):
            for parts, tensors, kept in self._places(chunk, made):
                for part, tensor in zip(parts, tensors, strict=True):
                    tensor[kept] = part

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
            for kind, blocks, (parts, tensors, kept) in zip(
                self._kinds, self._blocks, self._places(chunk, made), strict=True
            )
            if chunk >= state.chunks - blocks
            and not all(
                torch.equal(part, tensor[kept]) for part, tensor in zip(parts, tensors, strict=True)
            )
        ]

    def null_block_is_empty(self) -> bool:
        """Tell whether nothing was put into the null block."""
        return not any(tensor[NULL_BLOCK].any() for tensors in self._tensors for tensor in tensors)

    def cut_blocks_are_empty(self) -> bool:
        """Tell whether nothing was put into the blocks that a chunk does not keep."""
        return not any(
            tensor[1:].view(blocks, kind.chunk_blocks, -1)[:, : -kind.kept_blocks].any()
            for kind, blocks, tensors in zip(self._kinds, self._blocks, self._tensors, strict=True)
            for tensor in tensors
        )

    def _register(self) -> list[list[torch.Tensor]]:
        tensors = [
            [kv_tensor(kind, blocks, self._device) for _ in range(kind.tensors)]
            for kind, blocks in zip(self._kinds, self._blocks, strict=True)
        ]
        flat = [tensor for group in tensors for tensor in group]
        self._context.register(
            {f"layer.{index}": tensor for index, tensor in enumerate(flat)},
            self._deployment.geometry.name,
            self._deployment.ranks,
            1,
            SECONDS,
            engine_group_infos=engine_groups(self._deployment.geometry),
        )
        # Only now do tensors on a CPU lie in the memory that the server shares.
        return [[_as_bytes(tensor) for tensor in group] for group in tensors]

    def _key(self, state: State, request: str) -> IPCCacheServerKey:
        return self._deployment.key(state, request, self._rank)

    def _transfer(self, state: State) -> tuple[list[list[int]], object]:
        block_ids = [
            [block for chunk in range(state.chunks) for block in _blocks(kind, chunk, blocks)]
            for kind, blocks in zip(self._kinds, self._blocks, strict=True)
        ]
        return block_ids, self._context.create_recorded_event()

    def _objects(self, state: State) -> Iterator[tuple[int, torch.Tensor]]:
        key = self._key(state, "")
        for chunk, made in enumerate(ipc_key_to_object_keys(key, state.chunk_hashes, [0])[0]):
            content = self._content.of(made.chunk_hash, made.kv_rank)
            yield chunk, torch.from_numpy(content).to(self._device)

    def _places(
        self, chunk: int, made: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, Sequence[torch.Tensor], slice]]:
        # An object is the tensors of the first kind, then those of the next.
        start = 0
        for kind, blocks, tensors in zip(self._kinds, self._blocks, self._tensors, strict=True):
            parts = made[start : start + kind.chunk_bytes]
            last = _blocks(kind, chunk, blocks).stop
            kept = slice(last - kind.kept_blocks, last)
            yield parts.reshape(kind.tensors, kind.kept_blocks, -1), tensors, kept
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
        started = time.perf_counter()
        begun = self.begin(state)
        retrieved = begun.retrieved()
        seconds = time.perf_counter() - started
        self.end(begun)
        return Attempt(begun.found, retrieved, seconds)

    def begin(self, state: State) -> Begun:
        """Look a state up and, if all of it is found, have all ranks begin to retrieve it."""
        request = _request()
        found = self._lookup(state, request)
        ranks = self.ranks if found == state.chunks else ()
        results = tuple(rank.submit_retrieve(state, request) for rank in ranks)
        return Begun(request, found, results)

    def end(self, begun: Begun) -> None:
        """End the request, as an engine does when it is done or aborted."""
        self._scheduler.end_session(begun.request).result(SECONDS)

    def _lookup(self, state: State, request: str) -> int:
        key = self._deployment.key(state, request, None)
        self._scheduler.lookup(key, self._deployment.ranks).result(SECONDS)
        found: int | None = self._scheduler.wait_prefetch_status(request, SECONDS).result()
        if found is None:
            raise AssertionError(f"no answer to the lookup of {state}")
        return found


@contextmanager
def connected(
    port: int, deployment: Deployment, blocks: Blocks, device: Device = CPU
) -> Iterator[Client]:
    """Register all ranks with the server at a port; give everything back at the end."""
    with ExitStack() as open_parts:
        ranks = []
        for number in range(deployment.ranks):
            rank = Rank(port, deployment, number, blocks, device)
            open_parts.callback(rank.close)
            ranks.append(rank)
        client = Client(port, deployment, ranks)
        open_parts.callback(client.close)
        yield client


def kv_tensor(kind: Kind, blocks: int, device: str) -> torch.Tensor:
    """Return an empty tensor with the blocks of so many chunks and the null block."""
    # All states are whole words, and a CPU copies words faster than bytes.
    words = torch.float32
    shape = (
        NULL_BLOCK + 1 + blocks * kind.chunk_blocks,
        kind.block_states,
        kind.state_bytes // words.itemsize,
    )
    return torch.zeros(shape, dtype=words, device=device)


def engine_groups(geometry: Geometry) -> list[EngineGroupInfo]:
    """Return what an engine says about the tensors of a model, kind by kind."""
    indices = count()
    return [
        EngineGroupInfo(
            engine_group_id=group,
            layer_indices=tuple(next(indices) for _ in range(kind.tensors)),
            tokens_per_block=kind.block_tokens,
            sw_size_tokens=kind.window_tokens,
        )
        for group, kind in enumerate(geometry.kinds)
    ]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(1).view(torch.uint8)


def _blocks(kind: Kind, chunk: int, blocks: int) -> range:
    first = NULL_BLOCK + 1 + chunk % blocks * kind.chunk_blocks
    return range(first, first + kind.chunk_blocks)


def _request() -> str:
    return f"request-{next(_requests)}"
