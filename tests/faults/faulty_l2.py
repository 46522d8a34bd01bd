"""An L2 adapter in memory that answers when it is told to, and as it is told.

Until it has reported a load it may write into the load's buffers at any moment,
and it does: it notes in `violations` where they were freed before.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1ManagerListener, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import (
    L2AdapterConfigBase,
    register_l2_adapter_type,
)
from lmcache.v1.distributed.l2_adapters.factory import register_l2_adapter_factory
from lmcache.v1.platform import create_event_notifier

GARBAGE = 0xA5


class Fault(Enum):
    """How a load goes wrong."""

    NONE = "none"
    LOSE = "one object is gone"
    TRUNCATE = "one object is cut short"
    LENGTH = "one object has another length"
    OUTAGE = "nothing loads"
    RAISE = "asking for the result raises"


class LookupFault(Enum):
    """How the next lookup goes wrong."""

    REFUSE = "submitting it raises"
    RAISE = "asking for its result raises"
    STALL = "no answer for now"
    DENY = "nothing is found"


@dataclass(eq=False)
class Task:
    """A lookup or load that has not been answered."""

    task_id: int
    keys: list[ObjectKey]
    buffers: list[Any] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    # Nobody waits for it any more.
    orphaned: bool = False


class FaultyL2(L2AdapterInterface):  # type: ignore[misc]
    """Holds loads until `answer`; `passing` answers everything at once."""

    def __init__(self, *_from_factory: object) -> None:
        """Start empty and without faults."""
        super().__init__()
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[ObjectKey, torch.Tensor] = {}
        self.damaged: dict[ObjectKey, Fault] = {}
        self.passing = False
        self.lookup_fault: LookupFault | None = None
        self.refuse_load = False
        self.hold_stores = False
        self.loads: list[Task] = []
        self.lookups: list[Task] = []
        self.violations: list[str] = []
        self.last_report: Task | None = None
        # How many lookups have been asked for.
        self.lookups_begun = 0
        self.on_close: Callable[[], None] = lambda: None
        self._stores: list[tuple[int, list[ObjectKey], list[Any]]] = []
        self._locks: Counter[ObjectKey] = Counter()
        self._results: dict[int, tuple[Task, Bitmap | Exception]] = {}
        self._stored: dict[int, L2StoreResult] = {}
        self._next_task = 0
        self._store_fd = create_event_notifier()
        self._lookup_fd = create_event_notifier()
        self._load_fd = create_event_notifier()

    # What the schedule does

    def loading(self) -> int:
        """Return how many objects belong to loads that have not been reported."""
        with self.changed:
            return sum(len(load.keys) for load in self.loads)

    def storing(self) -> int:
        """Return how many objects belong to stores that are held."""
        with self.changed:
            return sum(len(keys) for _, keys, _ in self._stores)

    def all_is_fetched(self) -> bool:
        """Whether the server has fetched every report of a load or store."""
        with self.changed:
            loads = [task for task, _ in self._results.values() if task.buffers]
            return not (loads or self._stored)

    def held_stores(self) -> int:
        """Return how many stores are held."""
        with self.changed:
            return len(self._stores)

    def waits(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(not task.orphaned for task in [*self.loads, *self.lookups])

    def orphan(self, tasks: list[Task]) -> None:
        """Note that nobody waits for the answers to these tasks any more."""
        with self.changed:
            for task in tasks:
                task.orphaned = True
            self.changed.notify_all()

    def answer(self, load: Task, fault: Fault = Fault.NONE, cell: int = 0) -> None:
        """End a load, or let the question for its result raise and end it later."""
        with self.changed:
            if fault is Fault.RAISE:
                self._report(load, ConnectionError("scripted"), self._load_fd)
                return
            self.loads.remove(load)
            victim = load.keys[cell % len(load.keys)]
            if fault is Fault.LOSE:
                self.objects.pop(victim, None)
            elif fault in (Fault.TRUNCATE, Fault.LENGTH):
                self.damaged[victim] = fault
            loaded = Bitmap(len(load.keys))
            for number, key in enumerate(load.keys):
                if self._read(key, load, number) and fault is not Fault.OUTAGE:
                    loaded.set(number)
            self._report(load, loaded, self._load_fd)

    def answer_lookup(self, lookup: Task) -> None:
        """End a lookup that has been stalled."""
        with self.changed:
            self.lookups.remove(lookup)
            self._look_up(lookup)

    def pass_everything(self) -> None:
        """Answer all that waits, and from now on everything at once."""
        with self.changed:
            self.passing = True
            self.lookup_fault = None
            self.refuse_load = False
            for lookup in list(self.lookups):
                self.answer_lookup(lookup)
            for load in list(self.loads):
                self.answer(load)
            self.release_stores()

    def release_stores(self) -> None:
        """Let stores go on."""
        with self.changed:
            self.hold_stores = False
            stores, self._stores = self._stores, []
            for store in stores:
                self._store(*store)

    # What the server does

    def get_store_event_fd(self) -> int:
        """Return the descriptor that says that a store has ended."""
        return int(self._store_fd.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """Return the descriptor that says that a lookup has ended."""
        return int(self._lookup_fd.fileno())

    def get_load_event_fd(self) -> int:
        """Return the descriptor that says that a load has ended."""
        return int(self._load_fd.fileno())

    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Store now, or hold the store."""
        with self.changed:
            task_id = self._task_id()
            if self.hold_stores and not self.passing:
                self._stores.append((task_id, keys, objects))
            else:
                self._store(task_id, keys, objects)
            self.changed.notify_all()
            return task_id

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Return the stores that have ended."""
        with self.changed:
            stored, self._stored = self._stored, {}
            return stored

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], _layouts: object) -> int:
        """Look up now, unless there is a fault."""
        with self.changed:
            self.lookups_begun += 1
            fault, self.lookup_fault = self.lookup_fault, None
            if fault is LookupFault.REFUSE:
                raise ConnectionError("scripted")
            lookup = Task(self._task_id(), keys)
            if fault is LookupFault.RAISE:
                self._report(lookup, ConnectionError("scripted"), self._lookup_fd)
            elif fault is LookupFault.DENY:
                self._report(lookup, Bitmap(len(keys)), self._lookup_fd)
            elif fault is LookupFault.STALL:
                self.lookups.append(lookup)
            else:
                self._look_up(lookup)
            self.changed.notify_all()
            return lookup.task_id

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """Return what a lookup has found, once."""
        with self.changed:
            return self._result(task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Give back locks that lookups have taken."""
        with self.changed:
            for key in keys:
                self._locks[key] -= 1
                if self._locks[key] < 0:
                    self.violations.append(f"{key} is unlocked and was not locked")
                if self._locks[key] <= 0:
                    del self._locks[key]

    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int:
        """Hold a load, and write into its buffers already."""
        with self.changed:
            if self.refuse_load:
                self.refuse_load = False
                raise ConnectionError("scripted")
            tensors = [obj.tensor.view(torch.uint8).flatten() for obj in objects]
            load = Task(self._task_id(), keys, objects, tensors)
            for tensor in tensors:
                tensor.fill_(GARBAGE)
            self.loads.append(load)
            if self.passing:
                self.answer(load)
            self.changed.notify_all()
            return load.task_id

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Return which objects of a load are there, once."""
        with self.changed:
            if task_id in self._results:
                self.last_report = self._results[task_id][0]
            return self._result(task_id)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Forget objects."""
        with self.changed:
            for key in keys:
                self.objects.pop(key, None)
                self.damaged.pop(key, None)

    def report_status(self) -> dict[str, object]:
        """Return what `/status` says about an adapter."""
        with self.changed:
            return {
                "is_healthy": True,
                "type": type(self).__name__,
                "locked_key_count": len(self._locks),
            }

    def close(self) -> None:
        """End what has not been answered: the last moment at which it may write."""
        self.on_close()
        self.pass_everything()
        for notifier in (self._store_fd, self._lookup_fd, self._load_fd):
            notifier.close()

    def _task_id(self) -> int:
        self._next_task += 1
        return self._next_task

    def _report(self, task: Task, result: Bitmap | Exception, notifier: Any) -> None:
        self._results[task.task_id] = (task, result)
        notifier.notify()

    def _result(self, task_id: int) -> Bitmap | None:
        _task, result = self._results.pop(task_id, (None, None))
        if isinstance(result, Exception):
            raise result
        return result

    def _look_up(self, lookup: Task) -> None:
        found = Bitmap(len(lookup.keys))
        for number, key in enumerate(lookup.keys):
            if key in self.objects:
                found.set(number)
                self._locks[key] += 1
        self._report(lookup, found, self._lookup_fd)

    def _read(self, key: ObjectKey, load: Task, number: int) -> bool:
        """Write what there is of an object into its buffer; tell whether that is all."""
        if not load.buffers[number].is_valid():
            self.violations.append(f"the buffer for {key} was freed before its load ended")
            return False
        stored, buffer = self.objects.get(key), load.tensors[number]
        if stored is None:
            return False
        if key in self.damaged:
            end = len(buffer) // 2 if self.damaged[key] is Fault.TRUNCATE else len(buffer)
            buffer[:end] = stored[:end] ^ GARBAGE
            return False
        buffer.copy_(stored)
        return True

    def _store(self, task_id: int, keys: list[ObjectKey], objects: list[Any]) -> None:
        for key, obj in zip(keys, objects, strict=True):
            if not obj.is_valid():
                self.violations.append(f"{key} was freed before its store ended")
            elif key not in self.objects:
                self.objects[key] = obj.tensor.view(torch.uint8).flatten().clone()
        self._stored[task_id] = L2StoreResult(True, sum(obj.get_size() for obj in objects))
        self._store_fd.notify()


class FaultyL2Config(L2AdapterConfigBase):  # type: ignore[misc]
    """Nothing to configure."""

    @classmethod
    def from_dict(cls, _settings: dict[str, object]) -> "FaultyL2Config":
        """Return the configuration."""
        return cls()

    @classmethod
    def help(cls) -> str:
        """Return a line for the command's help."""
        return "an adapter for random schedules of faults"


register_l2_adapter_type("faulty", FaultyL2Config)
register_l2_adapter_factory("faulty", FaultyL2)


class LateAdmissions(L1ManagerListener):  # type: ignore[misc]
    """Notes as a violation what becomes readable in L1 after its restore has ended."""

    def __init__(self, l2: FaultyL2) -> None:
        """Watch what this adapter loads."""
        self._l2 = l2

    def on_l1_keys_finish_write_and_reserve_read(self, keys: list[ObjectKey]) -> None:
        """Compare with the report that the controller has just fetched."""
        report = self._l2.last_report
        if keys and report is not None and report.orphaned:
            self._l2.violations.append(f"a late load became readable: {keys}")

    def on_l1_keys_reserved_read(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""

    def on_l1_keys_read_finished(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""

    def on_l1_keys_reserved_write(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""

    def on_l1_keys_write_finished(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""

    def on_l1_keys_deleted_by_manager(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""

    def on_l1_keys_accessed(self, keys: list[ObjectKey]) -> None:
        """Not of interest."""
