"""LMCache's real storage manager, lookup and transfer modules, over the faulty L2.

Two workers of one model are registered, their KV caches in shared memory as on
any host without a GPU. The model has a full and a sliding attention group.
"""

import itertools
import time
from concurrent.futures import Future
from typing import Any

import torch
from lmcache.utils import EngineType
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import LMCacheDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule
from lmcache.v1.platform.base.event_ipc import get_event_ipc_backend
from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

from tests.faults.faulty_l2 import FaultyL2, FaultyL2Config, LateAdmissions
from tests.integration.waiting import wait_until

WINDOW_CHUNKS = 2
CHUNKS = 5
BLOCK = 8
BLOCKS_PER_CHUNK = 2
CHUNK = BLOCK * BLOCKS_PER_CHUNK
BLOCKS = CHUNKS * BLOCKS_PER_CHUNK
HEADS, HEAD_SIZE = 2, 16
# Keys and values of one layer and chunk: one object, and one page of L1.
OBJECT_BYTES = 2 * CHUNK * HEADS * HEAD_SIZE * 4
SLIDING_CHUNKS = 3
GROUP_WINDOWS = (-1, SLIDING_CHUNKS * CHUNK)
GROUPS = list(range(len(GROUP_WINDOWS)))
# Two windows and a half.
L1_OBJECTS = 2 * WINDOW_CHUNKS * len(GROUPS) + WINDOW_CHUNKS
CONTENTS = 2
MOST_RESTORES = 6
MODEL, WORLD = "model", 1
SECONDS = 10.0

# What L2 holds: objects by content, group and chunk.
Contents = list[list[list[torch.Tensor]]]

_unique = itertools.count(1)


class Clock:
    """The time that deadlines are counted in; schedules set it forward."""

    def __init__(self) -> None:
        """Start at the real time."""
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Return the time, set forward."""
        return time.monotonic() + self.ahead

    def perf_counter(self) -> float:
        """Return the real time."""
        return time.perf_counter()


def source_blocks(content: int) -> list[int]:
    """Return the blocks of a worker that hold what its prompts consist of."""
    return [1 + content * BLOCKS + number for number in range(BLOCKS)]


def target_blocks(number: int) -> list[int]:
    """Return the blocks that the schedule's restore of this number writes."""
    return source_blocks(CONTENTS + number)


class Worker:
    """A registered worker of the model, and its KV cache."""

    def __init__(self, server: "RestoreServer", instance_id: int) -> None:
        """Register with the server; the contents are the same for each worker."""
        self.server = server
        self.instance_id = instance_id
        self.registered = True
        num_blocks = 1 + (CONTENTS + MOST_RESTORES) * BLOCKS
        shape = (2, num_blocks, HEADS, BLOCK, HEAD_SIZE)
        generator = torch.Generator().manual_seed(1)
        self.kv = [torch.rand(shape, generator=generator) for _ in GROUPS]
        server.transfer.register_kv_cache(
            instance_id,
            [migrate_to_shm_and_wrap(tensor) for tensor in self.kv],
            MODEL,
            WORLD,
            EngineType.VLLM,
            {},
            [
                EngineGroupInfo(
                    engine_group_id=group,
                    layer_indices=(group,),
                    tokens_per_block=BLOCK,
                    sw_size_tokens=window,
                )
                for group, window in enumerate(GROUP_WINDOWS)
            ],
        )

    def read(self, blocks: list[int]) -> list[torch.Tensor]:
        """Return a copy of some blocks, for each group."""
        return [tensor[:, blocks].clone() for tensor in self.kv]

    def store(self, request_id: str, tokens: list[int], content: int) -> bool:
        """Store a prompt of which one content is the KV."""
        blocks = source_blocks(content)[: len(tokens) // BLOCK]
        key = ipc_key(request_id, tokens)
        event = self.server.event()
        stored: bool = self.server.transfer.store(
            key, self.instance_id, [list(blocks) for _ in GROUPS], event
        )[1]
        return stored

    def retrieve(
        self, request_id: str, tokens: list[int], blocks: list[int], skip: int
    ) -> "Future[tuple[bytes, bool]]":
        """Ask for a prompt's KV, and do not wait for it."""
        response = self.server.transfer.retrieve(
            ipc_key(request_id, tokens),
            self.instance_id,
            [list(blocks) for _ in GROUPS],
            self.server.event(),
            skip,
        )
        if isinstance(response, Future):
            return response
        done: Future[tuple[bytes, bool]] = Future()
        done.set_result(response)
        return done

    def leave(self) -> None:
        """Unregister."""
        self.server.transfer.unregister_kv_cache(self.instance_id)


class RestoreServer:
    """One cache server, and all that schedules on it share."""

    def __init__(self, clock: Clock, contents: Contents | None = None) -> None:
        """Start it, register two workers, and learn what L2 holds for a content."""
        memory = L1MemoryManagerConfig(
            size_in_bytes=L1_OBJECTS * OBJECT_BYTES,
            use_lazy=False,
            align_bytes=OBJECT_BYTES,
            shm_name="",
        )
        config = StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory),
            eviction_config=EvictionConfig("LRU", trigger_watermark=1.1),
            l2_adapter_config=L2AdaptersConfig([FaultyL2Config()]),
            prefetch_window_chunks=WINDOW_CHUNKS,
            # Prefetches that nobody waits for any more take a place until L2 reports.
            prefetch_max_in_flight=4 * MOST_RESTORES,
        )
        self.clock = clock
        self.context = MPCacheServerContext(config, chunk_size=CHUNK, separate_object_groups=True)
        self.storage = self.context.storage_manager
        self.lookup = LookupModule(self.context)
        self.transfer = LMCacheDrivenTransferModule(self.context)
        self.lookup.use_prefetch_window()
        self.transfer.use_prefetch_window()
        l2 = self.storage.l2_adapters()[0][1]
        assert isinstance(l2, FaultyL2)
        self.l2 = l2
        for manager in self.storage._l1_managers_by_id.values():
            manager.register_listener(LateAdmissions(l2))
        self.workers = [Worker(self, number + 1) for number in range(2)]
        self.contents = contents or [self._learn(content) for content in range(CONTENTS)]
        self.l2.objects.clear()

    def event(self) -> bytes:
        """Return an event of the engine that has already happened."""
        backend = get_event_ipc_backend("cpu")
        event: bytes = backend.export_event(backend.create_event("cpu"), "cpu")
        return event

    def keys(self, tokens: list[int]) -> list[list[ObjectKey]]:
        """Return the keys of a prompt's objects, for each group."""
        keys: list[list[ObjectKey]] = self.context.resolve_obj_keys(ipc_key("keys", tokens), GROUPS)
        self.context.session_manager.remove("keys")
        return keys

    def put(self, content: int) -> list[int]:
        """Put a new prompt into L2; return its tokens."""
        tokens = new_tokens(CHUNKS)
        for keys, tensors in zip(self.keys(tokens), self.contents[content], strict=True):
            self.l2.objects.update(zip(keys, tensors, strict=True))
        return tokens

    def reserve(self) -> list[ObjectKey]:
        """Take one object's worth of L1, as a store that goes on does."""
        keys = self.keys(new_tokens(1))[0]
        layout = MemoryLayoutDesc(shapes=[torch.Size([OBJECT_BYTES])], dtypes=[torch.uint8])
        return list(self.storage.reserve_write(keys, layout))

    def renew_workers(self) -> None:
        """Register new workers in place of those that have left."""
        for number, worker in enumerate(self.workers):
            if not worker.registered:
                self.workers[number] = Worker(self, worker.instance_id)

    def left_over(self) -> dict[str, Any]:
        """Return everything that must be zero where nothing goes on."""
        status = self.storage.report_status()
        l1, prefetch = status["l1_manager"], status["prefetch_controller"]
        store = status["store_controllers"]["_default"]
        counts = {
            "L1 bytes": l1["memory_used_bytes"],
            "read locks": l1["read_locked_count"],
            "write locks": l1["write_locked_count"],
            "staged objects": l1["staging_object_count"],
            "temporary objects": l1["temporary_count"],
            "L2 locks": status["l2_adapters"][0]["locked_key_count"],
            "stores": store["pending_keys_count"] + store["in_flight_task_count"],
            "queued prefetches": prefetch["submission_queue_size"] + prefetch["pending_queue_size"],
            "prefetches": prefetch["in_flight_request_count"],
            "unclaimed results": prefetch["completed_results_count"],
            "abandoned prefetches": prefetch["abandoned_request_count"],
            "quarantined bytes": prefetch["quarantined_bytes"],
            "bytes charged to restores": status["restore"]["staging_bytes"],
        }
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """Stop it as the server's own shutdown does."""
        self.transfer.close()
        self.context.close()

    def _learn(self, content: int) -> list[list[torch.Tensor]]:
        """Return the objects of a content, by group and chunk, as a store writes them."""
        objects: list[list[torch.Tensor]] = [[] for _ in GROUPS]
        tokens = new_tokens(CHUNKS)
        blocks = source_blocks(content)
        for first in range(CHUNKS):
            key = ipc_key("learn", tokens, first * CHUNK, (first + 1) * CHUNK)
            ids = blocks[first * BLOCKS_PER_CHUNK : (first + 1) * BLOCKS_PER_CHUNK]
            groups = [list(ids) for _ in GROUPS]
            assert self.transfer.store(key, self.workers[0].instance_id, groups, self.event())[1]
            keys = self.context.resolve_obj_keys(key, GROUPS)
            wanted = [key for group in keys for key in group]
            wait_until(lambda: all(k in self.l2.objects for k in wanted), "a store", SECONDS)  # noqa: B023
            for group, (key,) in enumerate(keys):
                objects[group].append(self.l2.objects[key])
            wait_until(self._is_empty, "an idle server", SECONDS)
        self.context.session_manager.remove("learn")
        return objects

    def _is_empty(self) -> bool:
        self.storage.clear()
        return not self.left_over()


def new_tokens(chunks: int) -> list[int]:
    """Return a prompt that nobody has used."""
    return [next(_unique), *range(1, chunks * CHUNK)]


def ipc_key(request_id: str, tokens: list[int], start: int = 0, end: int = -1) -> Any:
    """Return a worker's key for a range of a prompt."""
    return IPCCacheServerKey(
        model_name=MODEL,
        world_size=WORLD,
        worker_id=0,
        token_ids=tuple(tokens),
        start=start,
        end=len(tokens) if end < 0 else end,
        request_id=request_id,
        num_kv_readers=1,
    )
