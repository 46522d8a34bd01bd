"""LMCache's real storage manager, lookup and transfer modules, over the faulty L2.

Two workers of one model are registered. Where the server copies, their KV caches
are in shared memory as on any host without a GPU, and the model has a full and a
sliding attention group. Engine-driven workers copy by themselves, one group.
"""

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
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
from lmcache.v1.multiprocess.futures import MessagingFuture
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.engine_driven_transfer import EngineDrivenTransferModule
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import LMCacheDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule
from lmcache.v1.multiprocess.transfer_context.worker_transfer import EngineDrivenTransferContext
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
CONTENTS = 2
MOST_RESTORES = 6
MODEL = "model"
WORKERS = 2
HALF_WRITTEN = 7.0
# Of a prompt whose other chunks are in L2: in the middle of a window.
KEPT_CHUNK = 3
SECONDS = 10.0


@dataclass(frozen=True)
class Setup:
    """What a server serves, and how.

    Attributes:
        transfer: Who copies: the server, or the worker, out of messages or out of
            shared memory.
        ranks: Over how many workers the model is spread.
        windows: The attention window of each KV cache group, -1 for full attention.
        l1s: How many L1s there are; L2 loads into the last one.
    """

    transfer: str = "server"
    ranks: int = 1
    windows: tuple[int, ...] = GROUP_WINDOWS
    l1s: int = 1

    @property
    def groups(self) -> list[int]:
        """Return the KV cache groups."""
        return list(range(len(self.windows)))

    @property
    def l1_objects(self) -> int:
        """Return the size of an L1: two windows and a half, in objects."""
        return 2 * WINDOW_CHUNKS * len(self.windows) + WINDOW_CHUNKS


ONE_RANK = Setup()
TWO_RANKS = Setup(ranks=2)
TWO_L1S = Setup(l1s=2)
MESSAGES = Setup("pickle", windows=(-1,))
SHARED_MEMORY = Setup("shm", windows=(-1,))

# What L2 holds: objects by rank, content, group and chunk.
Contents = list[list[list[list[torch.Tensor]]]]

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
        """Register with the server; the contents are the same for each worker of a rank."""
        self.server = server
        self.instance_id = instance_id
        self.rank = (instance_id - 1) % server.setup.ranks
        self.registered = True
        num_blocks = 1 + (CONTENTS + MOST_RESTORES) * BLOCKS
        shape = (2, num_blocks, HEADS, BLOCK, HEAD_SIZE)
        generator = torch.Generator().manual_seed(1 + self.rank)
        self.kv = [torch.rand(shape, generator=generator) for _ in server.setup.windows]
        self._register()

    def read(self, blocks: list[int]) -> list[torch.Tensor]:
        """Return a copy of some blocks, for each group."""
        return [tensor[:, blocks].clone() for tensor in self.kv]

    def key(self, request_id: str, tokens: list[int], start: int = 0, end: int = -1) -> Any:
        """Return this worker's key for a range of a prompt."""
        return ipc_key(request_id, tokens, start, end, self.rank, self.server.setup.ranks)

    def store(
        self, request_id: str, tokens: list[int], content: int, start: int = 0, end: int = -1
    ) -> bool:
        """Store a range of a prompt of which one content is the KV."""
        key = self.key(request_id, tokens, start, end)
        return self._store(key, source_blocks(content)[key.start // BLOCK : key.end // BLOCK])

    def retrieve(
        self, request_id: str, tokens: list[int], blocks: list[int], skip: int
    ) -> "Future[tuple[bytes, bool]]":
        """Ask for a prompt's KV, and do not wait for it."""
        response = self.server.transfer.retrieve(
            self.key(request_id, tokens),
            self.instance_id,
            [list(blocks) for _ in self.kv],
            self.server.event(),
            skip,
        )
        if isinstance(response, Future):
            return response
        done: Future[tuple[bytes, bool]] = Future()
        done.set_result(response)
        return done

    def begin_store(self, request_id: str, tokens: list[int]) -> int:
        """Return 0: only workers that share memory with the server write into L1."""
        return 0

    def leave(self) -> None:
        """Unregister."""
        self.server.transfer.unregister_kv_cache(self.instance_id)

    def close(self) -> None:
        """Wait until it does nothing any more."""

    def _register(self) -> None:
        self.server.transfer.register_kv_cache(
            self.instance_id,
            [migrate_to_shm_and_wrap(tensor) for tensor in self.kv],
            MODEL,
            self.server.setup.ranks,
            EngineType.VLLM,
            {},
            [
                EngineGroupInfo(
                    engine_group_id=group,
                    layer_indices=(group,),
                    tokens_per_block=BLOCK,
                    sw_size_tokens=window,
                )
                for group, window in enumerate(self.server.setup.windows)
            ],
        )

    def _store(self, key: Any, blocks: list[int]) -> bool:
        stored: bool = self.server.transfer.store(
            key, self.instance_id, [list(blocks) for _ in self.kv], self.server.event()
        )[1]
        return stored


class DirectClient:
    """Calls the server's handlers without a transport in between."""

    def __init__(self, transfer: Any) -> None:
        """Call this module."""
        self._transfer = transfer

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return a function that asks for an operation."""

        def ask(*arguments: Any) -> Any:
            answer = MessagingFuture()
            response = getattr(self._transfer, operation)(*arguments)
            if isinstance(response, Future):
                response.add_done_callback(lambda done: answer.set_result(done.result()))
            else:
                answer.set_result(response)
            return answer

        return ask


class CopyingWorker(Worker):
    """An engine-driven worker: it copies by itself, on the thread of its model."""

    def retrieve(
        self, request_id: str, tokens: list[int], blocks: list[int], skip: int
    ) -> "Future[tuple[bytes, bool]]":
        """Ask for a prompt's KV window by window, and do not wait for it."""
        return self._thread.submit(self._retrieve, self.key(request_id, tokens), blocks, skip)

    def begin_store(self, request_id: str, tokens: list[int]) -> int:
        """Write a part of a prompt into the server's L1; return the objects reserved there."""
        key = self.key(request_id, tokens)
        prepared = self._context.engine_driven_context.prepare_store(key, self.instance_id)
        slots = prepared[0] if prepared else []
        for slot in slots:
            slot[0].fill_(HALF_WRITTEN)
        return len(slots)

    def close(self) -> None:
        """Wait until it does nothing any more."""
        self._thread.shutdown()
        self._context.engine_driven_context.close()

    def _register(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._layers = {"layer": self.kv[0]}
        self._context = EngineDrivenTransferContext(
            self.instance_id, DirectClient(self.server.transfer)
        )
        self._context.register(
            self._layers, MODEL, self.server.setup.ranks, BLOCKS_PER_CHUNK, SECONDS
        )
        if self.server.setup.transfer == "shm":
            # It is no process of its own: the server's shared memory is still tracked.
            pool = self.server.context.shm_pool_info["shm_name"]
            resource_tracker.register(f"/{pool.lstrip('/')}", "shared_memory")

    def _retrieve(self, key: Any, blocks: list[int], skip: int) -> tuple[bytes, bool]:
        done = self._context.submit_retrieve(
            key.request_id,
            key,
            self._layers,
            [blocks],
            None,
            BLOCKS_PER_CHUNK,
            skip_first_n_tokens=skip,
        )
        return b"", bool(done.result(SECONDS))

    def _store(self, key: Any, blocks: list[int]) -> bool:
        try:
            done = self._context.submit_store(
                key.request_id, key, self._layers, [blocks], None, BLOCKS_PER_CHUNK
            )
        except ValueError:  # The server does not know it any more.
            return False
        return bool(done.result(SECONDS))


class RestoreServer:
    """One cache server, and all that schedules on it share."""

    def __init__(
        self, clock: Clock, contents: Contents | None = None, setup: Setup = ONE_RANK
    ) -> None:
        """Start it, register two workers, and learn what L2 holds for a content."""
        self.clock = clock
        self.setup = setup
        self.copies = setup.transfer == "server"
        self.context = MPCacheServerContext(
            self._config(), chunk_size=CHUNK, separate_object_groups=True
        )
        self.storage = self.context.storage_manager
        self.lookup = LookupModule(self.context)
        module = LMCacheDrivenTransferModule if self.copies else EngineDrivenTransferModule
        self.transfer = module(self.context)
        self.lookup.use_prefetch_window()
        self.transfer.use_prefetch_window()
        l2 = self.storage.l2_adapters()[0][1]
        assert isinstance(l2, FaultyL2)
        self.l2 = l2
        for manager in self.storage._l1_managers_by_id.values():
            manager.register_listener(LateAdmissions(l2))
        self.workers = [self._worker(number + 1) for number in range(WORKERS)]
        self.contents = contents or self._learn_contents()
        self.l2.objects.clear()

    def _config(self) -> StorageManagerConfig:
        l2 = FaultyL2Config()
        l1s = [self._l1("_default")]
        if self.setup.l1s > 1:
            l2.affinity_tag = "loaded"
            l1s.append(self._l1(l2.affinity_tag))
        return StorageManagerConfig(
            l1_manager_config=l1s[0],
            l1_manager_configs=l1s,
            eviction_config=EvictionConfig("LRU", trigger_watermark=1.1),
            l2_adapter_config=L2AdaptersConfig([l2]),
            prefetch_window_chunks=WINDOW_CHUNKS,
            # Prefetches that nobody waits for any more take a place until L2 reports.
            prefetch_max_in_flight=4 * MOST_RESTORES,
        )

    def _l1(self, tag: str) -> L1ManagerConfig:
        shared = self.setup.transfer == "shm"
        memory = L1MemoryManagerConfig(
            size_in_bytes=self.setup.l1_objects * OBJECT_BYTES,
            use_lazy=False,
            align_bytes=OBJECT_BYTES,
            shm_name=f"faults_{os.getpid()}_{next(_unique)}" if shared else "",
        )
        return L1ManagerConfig(memory_config=memory, tag=tag)

    def _worker(self, instance_id: int) -> Worker:
        return (Worker if self.copies else CopyingWorker)(self, instance_id)

    def event(self) -> bytes:
        """Return an event of the engine that has already happened."""
        backend = get_event_ipc_backend("cpu")
        event: bytes = backend.export_event(backend.create_event("cpu"), "cpu")
        return event

    def keys(self, tokens: list[int], rank: int = 0) -> list[list[ObjectKey]]:
        """Return the keys of a prompt's objects on a rank, for each group."""
        keys: list[list[ObjectKey]] = self.context.resolve_obj_keys(
            ipc_key("keys", tokens, rank=rank, ranks=self.setup.ranks), self.setup.groups
        )
        self.context.session_manager.remove("keys")
        return keys

    def put(self, content: int) -> list[int]:
        """Put a new prompt into L2; return its tokens."""
        tokens = new_tokens(CHUNKS)
        for rank in range(self.setup.ranks):
            stored = self.contents[rank][content]
            for keys, tensors in zip(self.keys(tokens, rank), stored, strict=True):
                self.l2.objects.update(zip(keys, tensors, strict=True))
        return tokens

    def lookup_key(self, request_id: str, tokens: list[int]) -> Any:
        """Return the scheduler's key for a prompt."""
        return ipc_key(request_id, tokens, ranks=self.setup.ranks).no_worker_id_version()

    def reserve(self, objects: int) -> dict[ObjectKey, Any]:
        """Take L1's memory for so many objects, as a store that goes on does."""
        layout = MemoryLayoutDesc(shapes=[torch.Size([OBJECT_BYTES])], dtypes=[torch.uint8])
        keys = [self.keys(new_tokens(1))[0][0] for _ in range(objects)]
        reserved: dict[ObjectKey, Any] = {}
        for key in keys:
            reserved.update(self.storage.reserve_write([key], layout))
        return reserved

    def unreserve(self, reserved: dict[ObjectKey, Any]) -> None:
        """Let such a store end."""
        self.storage.finish_write_by_owner(self.storage.prepare_write_completion(reserved))

    def keep_in_l1(self, tokens: list[int], content: int) -> None:
        """Move a chunk of a prompt from L2 into an L1 that L2 does not load into.

        It stays in L2 if there is no such L1, or no room there.
        """
        first = self.storage._l1_manager
        used, _ = first.get_memory_usage()
        objects = len(self.setup.groups)
        if self.setup.l1s == 1 or used // OBJECT_BYTES + objects > self.setup.l1_objects:
            return
        start = KEPT_CHUNK * CHUNK
        if not self.workers[0].store("keep", tokens, content, start, start + CHUNK):
            return
        kept = [keys[KEPT_CHUNK] for keys in self.keys(tokens)]
        wait_until(lambda: all(map(first.get_object_state, kept)), "a chunk in L1", SECONDS)
        self.context.session_manager.remove("keep")
        self.l2.delete(kept)

    def renew_workers(self) -> None:
        """Register new workers in place of those that have left."""
        for number, worker in enumerate(self.workers):
            if not worker.registered:
                worker.close()
                self.workers[number] = self._worker(worker.instance_id)

    def left_over(self) -> dict[str, Any]:
        """Return everything that must be zero where nothing goes on."""
        status = self.storage.report_status()
        l1s, prefetch = status["l1_managers"].values(), status["prefetch_controller"]
        counts = {
            "L1 bytes": sum(l1["memory_used_bytes"] for l1 in l1s),
            "read locks": sum(l1["read_locked_count"] for l1 in l1s),
            "write locks": sum(l1["write_locked_count"] for l1 in l1s),
            "staged objects": sum(l1["staging_object_count"] for l1 in l1s),
            "temporary objects": sum(l1["temporary_count"] for l1 in l1s),
            "L2 locks": status["l2_adapters"][0]["locked_key_count"],
            "stores": self.stores_at_work(),
            "queued prefetches": prefetch["submission_queue_size"] + prefetch["pending_queue_size"],
            "prefetches": prefetch["in_flight_request_count"],
            "unclaimed results": prefetch["completed_results_count"],
            "abandoned prefetches": prefetch["abandoned_request_count"],
            "quarantined bytes": prefetch["quarantined_bytes"],
            "bytes charged to restores": status["restore"]["staging_bytes"],
            "transfers": self._open_transfers(),
        }
        return {name: count for name, count in counts.items() if count}

    def wait_given_up(self) -> None:
        """Wait until nobody waits any more for a prefetch that goes on now."""
        controller = self.storage._prefetch_controller
        begun = list(controller._in_flight_requests.values())

        def is_given_up(request: Any) -> bool:
            goes_on = request.request_id in controller._in_flight_requests
            wanted = not (request.aborted or controller._is_abandoned(request.request_id))
            return not (goes_on and wanted)

        wait_until(lambda: all(map(is_given_up, begun)), "late prefetches are given up", SECONDS)

    def stores_at_work(self) -> int:
        """Return how many objects wait for a store to L2, and how many stores go on."""
        controllers = self.storage._store_controllers.values()
        status = [controller.report_status() for controller in controllers]
        return sum(each["pending_keys_count"] + each["in_flight_task_count"] for each in status)

    def close(self) -> None:
        """Stop it as the server's own shutdown does."""
        self.transfer.close()
        self.context.close()
        for worker in self.workers:
            worker.close()

    def _open_transfers(self) -> int:
        """Return how many transfers of engine-driven workers have not been ended."""
        transfer = self.transfer
        if self.copies:
            return 0
        pending = len(transfer._pending_shm_reads) + len(transfer._pending_shm_writes)
        return pending + len(transfer._window_lender._windows)

    def _learn_contents(self) -> Contents:
        # Stores overflow into the L1 from which they go to L2.
        reserved = self.reserve((self.setup.l1s - 1) * self.setup.l1_objects)
        contents = [
            [self._learn(worker, content, len(reserved)) for content in range(CONTENTS)]
            for worker in self.workers[: self.setup.ranks]
        ]
        self.unreserve(reserved)
        self.storage.clear()
        return contents

    def _learn(self, worker: Worker, content: int, reserved: int) -> list[list[torch.Tensor]]:
        """Return the objects of a content, by group and chunk, as a store writes them."""
        objects: list[list[torch.Tensor]] = [[] for _ in self.setup.groups]
        tokens = new_tokens(CHUNKS)
        for first in range(CHUNKS):
            start, end = first * CHUNK, (first + 1) * CHUNK
            assert worker.store("learn", tokens, content, start, end)
            key = worker.key("learn", tokens, start, end)
            keys = self.context.resolve_obj_keys(key, self.setup.groups)
            wanted = [key for group in keys for key in group]
            wait_until(lambda: all(k in self.l2.objects for k in wanted), "a store", SECONDS)  # noqa: B023
            for group, (key,) in enumerate(keys):
                objects[group].append(self.l2.objects[key])
            wait_until(lambda: self._holds_only(reserved), "an idle server", SECONDS)
        self.context.session_manager.remove("learn")
        return objects

    def _holds_only(self, objects: int) -> bool:
        self.storage.clear()
        used: int = self.storage.get_l1_usage()[0]
        return used == objects * OBJECT_BYTES


def new_tokens(chunks: int) -> list[int]:
    """Return a prompt that nobody has used."""
    return [next(_unique), *range(1, chunks * CHUNK)]


def ipc_key(
    request_id: str,
    tokens: list[int],
    start: int = 0,
    end: int = -1,
    rank: int = 0,
    ranks: int = 1,
) -> Any:
    """Return a worker's key for a range of a prompt."""
    return IPCCacheServerKey(
        model_name=MODEL,
        world_size=ranks,
        worker_id=rank,
        token_ids=tuple(tokens),
        start=start,
        end=len(tokens) if end < 0 else end,
        request_id=request_id,
        num_kv_readers=1,
    )
