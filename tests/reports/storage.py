"""A real StorageManager whose objects are known by their numbers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lmcache.v1.distributed.api import (
    FULL_ATTENTION_WINDOW_CHUNKS,
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchResult,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase, L2AdaptersConfig
from lmcache.v1.distributed.storage_manager import StorageManager

from tests.faults.faulty_l2 import FaultyL2, FaultyL2Config
from tests.integration.waiting import wait_until

OBJECT_BYTES = 4096  # One page of L1.
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([OBJECT_BYTES])], dtypes=[torch.uint8])
SECONDS = 10.0


def key(chunk: int, rank: int = 0) -> ObjectKey:
    """Return the key of a chunk's object on a rank."""
    return ObjectKey(ObjectKey.IntHash2Bytes(chunk), "model", rank)


def row(chunks: Iterable[int], rank: int = 0) -> GroupedObjectKeys:
    """Return what a prefetch asks for of one rank."""
    return GroupedObjectKeys(
        keys=[key(chunk, rank) for chunk in chunks],
        object_group_id=0,
        layout_desc=LAYOUT,
        sliding_window_size=FULL_ATTENTION_WINDOW_CHUNKS,
    )


def content(obj_key: ObjectKey) -> torch.Tensor:
    """Return the bytes of an object, which are no other object's."""
    value = (int.from_bytes(obj_key.chunk_hash, "big") * 2 + obj_key.kv_rank) % 251 + 1
    return torch.full((OBJECT_BYTES,), value, dtype=torch.uint8)


class Storage:
    """A StorageManager with windows, an L1 of so many objects, and one L2."""

    def __init__(
        self, l1_objects: int, window_chunks: int, l2: L2AdapterConfigBase | None = None
    ) -> None:
        """Start it; without l2, L2 is the scripted one."""
        memory = L1MemoryManagerConfig(
            size_in_bytes=l1_objects * OBJECT_BYTES,
            use_lazy=False,
            align_bytes=OBJECT_BYTES,
            shm_name="",
        )
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory_config=memory),
                eviction_config=EvictionConfig("LRU", trigger_watermark=1.1),
                l2_adapter_config=L2AdaptersConfig([l2 or FaultyL2Config()]),
                prefetch_window_chunks=window_chunks,
            )
        )
        self._closed = False

    @property
    def l2(self) -> FaultyL2:
        """Return the scripted L2."""
        adapter = self.manager.l2_adapters()[0][1]
        assert isinstance(adapter, FaultyL2)
        return adapter

    def put_l2(self, keys: Iterable[ObjectKey]) -> None:
        """Put objects into the scripted L2."""
        self.l2.objects.update({obj_key: content(obj_key) for obj_key in keys})

    def store(self, keys: list[ObjectKey]) -> int:
        """Store objects as a worker does; return for how many there was room."""
        objects = self.manager.reserve_write(keys, LAYOUT)
        for obj_key, obj in objects.items():
            obj.tensor.copy_(content(obj_key))
        self.manager.finish_write(list(objects))
        return len(objects)

    def probe(self, *rows: GroupedObjectKeys) -> list[int]:
        """Return how many chunks a lookup promises, for each row."""
        spec = PrefetchTaskSpec(key_groups=list(rows), probe_only=True)
        handle = self.manager.submit_prefetch_task(spec)
        assert self.manager.wait_prefetch_status(handle, SECONDS)
        result = self.manager.query_prefetch_status(handle)
        assert result is not None
        return [cells.popcount() for cells in result.hit_cells]

    def stage(self, *rows: GroupedObjectKeys, seconds: float = SECONDS) -> PrefetchResult | None:
        """Stage a window; None if it is not complete. Its objects are what they must be."""
        result = self.manager.prefetch_window(list(rows), seconds)
        if result is not None:
            keys = [obj_key for each in rows for obj_key in each.keys]
            found, objects = self.manager.unsafe_read(keys, l1_owners=result.l1_owners)
            assert found == keys
            for obj_key, obj in zip(keys, objects, strict=True):
                assert torch.equal(obj.tensor.flatten(), content(obj_key)), obj_key
        return result

    def release(self, result: PrefetchResult) -> None:
        """Give a window back."""
        owners = result.l1_owners
        self.manager.finish_read_prefetched(list(owners), l1_owners=owners)

    def restore(self, chunks: int, window: int) -> int:
        """Restore a hit window by window; return its chunks, or 0 if one window fails."""
        for first in range(0, chunks, window):
            result = self.stage(row(range(first, min(first + window, chunks))))
            if result is None:
                return 0
            self.release(result)
        return chunks

    def l1(self) -> dict[str, Any]:
        """Return the status of L1."""
        status: dict[str, Any] = self.manager.report_status()["l1_manager"]
        return status

    def restore_status(self) -> dict[str, Any]:
        """Return what the operator sees of restores."""
        status: dict[str, Any] = self.manager.report_status()["restore"]
        return status

    def wait_empty(self) -> None:
        """Wait until no byte, lock, task or result is left."""
        wait_until(self._is_empty, "nothing is left", SECONDS, lambda: str(self._left_over()))

    def close(self) -> None:
        """Stop it; the scripted L2 has seen nothing that it must not see."""
        if self._closed:
            return
        self._closed = True
        adapter = self.manager.l2_adapters()[0][1]
        self.manager.close()
        if isinstance(adapter, FaultyL2):
            assert not adapter.violations, adapter.violations

    def _is_empty(self) -> bool:
        self.manager.clear()
        return not self._left_over()

    def _left_over(self) -> dict[str, int]:
        status = self.manager.report_status()
        l1, prefetch = status["l1_manager"], status["prefetch_controller"]
        counts = {
            "L1 bytes": l1["memory_used_bytes"],
            "read locks": l1["read_locked_count"],
            "staged objects": l1["staging_object_count"],
            "L2 locks": status["l2_adapters"][0].get("locked_key_count", 0),
            "prefetches": prefetch["in_flight_request_count"],
            "unclaimed results": prefetch["completed_results_count"],
            "quarantined bytes": prefetch["quarantined_bytes"],
        }
        return {name: count for name, count in counts.items() if count}


def file_of(folder: Path, chunk: int) -> Path:
    """Return the file in which the fs adapter keeps a chunk's object."""
    (path,) = folder.glob(f"*@{key(chunk).chunk_hash.hex()}.data")
    return path
