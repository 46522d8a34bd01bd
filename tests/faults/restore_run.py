"""Carries out one schedule on a server, step by step, without waiting for time."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from lmcache.v1.distributed.api import ObjectKey

from tests.faults import restore_steps as steps
from tests.faults.faulty_l2 import Fault, FaultyL2
from tests.faults.restore_server import (
    BLOCK,
    BLOCKS_PER_CHUNK,
    CHUNK,
    MOST_RESTORES,
    SECONDS,
    RestoreServer,
    Worker,
    new_tokens,
    target_blocks,
)
from tests.integration.waiting import wait_until

_requests = itertools.count()
HARMLESS = (
    steps.Restore,
    steps.AnswerLookup,
    steps.HoldCopy,
    steps.EndCopy,
    steps.FillL1,
    steps.FreeL1,
    steps.Store,
    steps.EndStores,
)


class CopyGate:
    """Stands before every copy of a restore: lets it pass, holds it, or fails it."""

    def __init__(self) -> None:
        """Let everything pass."""
        self.changed = threading.Condition()
        self.hold_next = self.fail_next = self.held = False
        # How many copies are held.
        self.holding = 0

    def before(self, copy: Callable[..., None]) -> Callable[..., None]:
        """Return a function that copies when it is time."""

        def copy_in_time(*arguments: Any, **keywords: Any) -> None:
            with self.changed:
                fails, self.fail_next = self.fail_next, False
                if self.hold_next:
                    self.held, self.hold_next = True, False
                    self.holding += 1
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: not self.held)
                    self.holding -= 1
            if fails:
                raise RuntimeError("scripted")
            copy(*arguments, **keywords)

        return copy_in_time

    def let_go(self) -> None:
        """Let a held copy go on."""
        with self.changed:
            self.held = False
            self.changed.notify_all()

    def open(self) -> None:
        """Let everything pass."""
        self.hold_next = self.fail_next = False
        self.let_go()


@dataclass(eq=False)
class Prompt:
    """A prompt that is in L2."""

    tokens: list[int]
    content: int


@dataclass(eq=False)
class Restored:
    """A restore that has been asked for."""

    request_id: str
    worker: Worker
    prompt: Prompt
    hit_chunks: int
    skip_blocks: int
    blocks: list[int]
    # When its worker asked for it, in the schedule's time.
    asked_at: float | None = None
    # It must end although L2 does not answer.
    doomed: bool = False
    succeeded: bool | None = None
    # The worker's KV cache when the end was reported.
    reported: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class AtStop:
    """What a server that stops has not given back when it closes L2.

    Attributes:
        left: Everything that is not zero.
        loading_before: Objects that L2 was loading when the stop began.
        loading: Objects that it is loading still.
        looking_up: Lookups that it has not answered.
        storing: Objects that it is storing still.
    """

    left: dict[str, Any]
    loading_before: int
    loading: int
    looking_up: int
    storing: int


class RestoreRun:
    """The state of one schedule. `finish` lets everything end that goes on."""

    def __init__(self, server: RestoreServer, gate: CopyGate) -> None:
        """Begin with nothing in L1 and L2."""
        self.server = server
        self.l2: FaultyL2 = server.l2
        self.gate = gate
        gate.changed = self.l2.changed
        self.l2.passing = False
        self.prompts: list[Prompt] = []
        self.restores: list[Restored] = []
        self.request_ids: list[str] = []
        self.stored: list[tuple[list[int], int, int]] = []
        self.workers = list(server.workers)
        self.before = [[t.clone() for t in worker.kv] for worker in self.workers]
        self.harmed = self.stopping = False
        # The objects that registered workers have begun to store, and all such prompts.
        self.begun: dict[Worker, list[int]] = {}
        self.half_written: list[list[int]] = []
        self.reserved: dict[ObjectKey, Any] = {}
        self.at_stop: AtStop | None = None
        # The lookups begun when all but a window that waits for room came to rest.
        self._resting_since: int | None = None
        # The thread that a worker's transfers share.
        self._affinity = ThreadPoolExecutor(1)
        self._stopper = ThreadPoolExecutor(1)
        self._jobs: list[Future[None]] = []

    def do(self, step: steps.Step) -> None:
        """Carry out a step, and wait until nothing moves any more."""
        harmless = isinstance(step, HARMLESS) or (
            isinstance(step, steps.Answer) and step.fault is Fault.NONE
        )
        self.harmed = self.harmed or not harmless
        getattr(self, f"_{type(step).__name__.lower()}")(step)
        self._settle()

    def stop(self, reports: int) -> None:
        """Stop the server, with so many loads reported while it stops."""
        if not all(job.done() for job in self._jobs):
            # The server lets what its workers' threads do end before it closes.
            self.gate.open()
            self._end_jobs()
            self._settle()
        self.harmed = self.stopping = True
        loading = self.l2.loading()
        self.l2.on_close = lambda: self._note_what_is_left(loading)
        stopped = self._stopper.submit(self.server.close)
        self._settle()
        with self.l2.changed:
            for load in self.l2.loads[:reports]:
                self.l2.answer(load)
        self.gate.open()
        self._end_jobs()
        stopped.result(SECONDS)
        self._shut_down()

    def finish(self) -> None:
        """Take all faults away, and wait until everything has ended."""
        self.gate.open()
        for number, worker in enumerate(self.workers):
            if worker in self.begun:
                self._leave(steps.Leave(number))
        self._freel1(steps.FreeL1())
        self.l2.pass_everything()
        self._end_jobs()
        wait_until(
            lambda: self._first() is None,
            "every restore has ended",
            SECONDS,
            lambda: str([r.request_id for r in self.restores if r.succeeded is None]),
        )
        self._shut_down()
        self.server.renew_workers()
        for request_id in self.request_ids:
            self.server.lookup.end_session(request_id)

    def find(self, prompt: Prompt) -> tuple[str, int]:
        """Look a prompt up; return the request and the hit in chunks."""
        lookup = self.server.lookup
        request_id = f"request-{next(_requests)}"
        self.request_ids.append(request_id)
        lookup.lookup(self.server.lookup_key(request_id, prompt.tokens), 1)
        chunks = None
        while chunks is None and not any(not task.orphaned for task in self.l2.lookups):
            chunks = lookup.wait_prefetch_status(request_id, 0.01)
        if chunks is None:
            # The request gives up on a lookup that is not answered.
            lookup.end_session(request_id)
            self.l2.orphan(self.l2.lookups)
        return request_id, chunks or 0

    # Steps

    def _restore(self, step: steps.Restore) -> None:
        ranks = self.server.setup.ranks
        workers = self.workers if ranks > 1 else [self.workers[step.worker]]
        if len(self.restores) + ranks > MOST_RESTORES or not all(w.registered for w in workers):
            return
        if any(not task.orphaned for task in self.l2.lookups) or self._waits_for_room():
            # The next lookup is that of the running restore.
            return
        if not (step.again and self.prompts):
            tokens = self.server.put(step.content)
            if self.workers[0].registered and not self.gate.held:
                self.server.keep_in_l1(tokens, step.content)
            self.prompts.append(Prompt(tokens, step.content))
        prompt = self.prompts[-1]
        request_id, chunks = self.find(prompt)
        if chunks == 0:
            return
        for worker in workers:
            blocks = target_blocks(len(self.restores))[: chunks * BLOCKS_PER_CHUNK]
            skip = min(step.skip_blocks, len(blocks))
            self._submit(Restored(request_id, worker, prompt, chunks, skip, blocks))

    def _submit(self, restore: Restored) -> None:
        self.restores.append(restore)
        has_to_wait = not all(job.done() for job in self._jobs)
        self._on_affinity_thread(lambda: self._ask(restore))
        if not has_to_wait:
            self._jobs[-1].result(SECONDS)

    def _ask(self, restore: Restored) -> None:
        tokens = restore.prompt.tokens[: restore.hit_chunks * CHUNK]
        restore.asked_at = self.server.clock.ahead
        response = restore.worker.retrieve(
            restore.request_id, tokens, restore.blocks, restore.skip_blocks * BLOCK
        )
        response.add_done_callback(lambda done: self._end(restore, done.result()[1]))

    def _end(self, restore: Restored, succeeded: bool) -> None:
        with self.l2.changed:
            restore.reported = restore.worker.read(restore.blocks)
            if self.server.copies and self._first() is restore:
                self.l2.orphan([*self.l2.loads, *self.l2.lookups])
            restore.succeeded = succeeded
            self.l2.changed.notify_all()

    def _answer(self, step: steps.Answer) -> None:
        with self.l2.changed:
            if self.l2.loads:
                load = self.l2.loads[step.load % len(self.l2.loads)]
                # What has ended badly already only remains to be reported.
                fault = Fault.NONE if load.orphaned and step.fault is Fault.RAISE else step.fault
                self.l2.answer(load, fault, step.cell)

    def _answerlookup(self, _step: steps.AnswerLookup) -> None:
        with self.l2.changed:
            if self.l2.lookups:
                self.l2.answer_lookup(self.l2.lookups[0])

    def _faillookup(self, step: steps.FailLookup) -> None:
        self.l2.lookup_fault = step.fault

    def _refuseload(self, _step: steps.RefuseLoad) -> None:
        self.l2.refuse_load = True

    def _loseobject(self, step: steps.LoseObject) -> None:
        if self.prompts:
            rank = step.chunk % self.server.setup.ranks
            keys = self.server.keys(self.prompts[-1].tokens, rank)
            self.l2.delete([keys[0][step.chunk]])

    def _holdcopy(self, _step: steps.HoldCopy) -> None:
        self.gate.hold_next = True

    def _failcopy(self, _step: steps.FailCopy) -> None:
        self.gate.fail_next = True

    def _endcopy(self, _step: steps.EndCopy) -> None:
        self.gate.let_go()

    def _abort(self, step: steps.Abort) -> None:
        # LMCache cannot end a session of a model that nobody has registered.
        if self.restores and any(worker.registered for worker in self.workers):
            request_id = self.restores[step.request % len(self.restores)].request_id
            for restore in self.restores:
                # An engine-driven worker is not told.
                ends = self.server.copies and restore.request_id == request_id
                restore.doomed = restore.doomed or ends
            self.server.lookup.end_session(request_id)

    def _leave(self, step: steps.Leave) -> None:
        worker = self.workers[step.worker]
        if worker.registered:
            worker.registered = False
            self.begun.pop(worker, None)
            for restore in self.restores:
                restore.doomed = restore.doomed or restore.worker is worker
            self._on_affinity_thread(worker.leave)

    def _latewindow(self, _step: steps.LateWindow) -> None:
        first = self._first()
        if self.server.copies and first is not None and not self.gate.held:
            first.doomed = True
        self._pass_time(self.server.storage.prefetch_window_timeout_seconds)

    def _laterestore(self, _step: steps.LateRestore) -> None:
        self._pass_time(self.server.storage.prefetch_restore_timeout_seconds)

    def _filll1(self, step: steps.FillL1) -> None:
        self.reserved.update(self.server.reserve(step.objects))

    def _freel1(self, _step: steps.FreeL1) -> None:
        reserved, self.reserved = self.reserved, {}
        self.server.unreserve(reserved)

    def _store(self, step: steps.Store) -> None:
        worker = self.workers[step.worker]
        if worker.registered:
            self.l2.hold_stores = self.l2.hold_stores or step.hold
            self._on_affinity_thread(lambda: self._store_prompt(worker, step))

    def _store_prompt(self, worker: Worker, step: steps.Store) -> None:
        tokens = new_tokens(step.chunks)
        request_id = f"request-{next(_requests)}"
        self.request_ids.append(request_id)
        if worker.store(request_id, tokens, step.content):
            self.stored.append((tokens, step.content, worker.rank))

    def _beginstore(self, step: steps.BeginStore) -> None:
        worker = self.workers[step.worker]
        if not (worker.registered and self.server.setup.transfer == "shm"):
            return
        tokens = new_tokens(step.chunks)
        request_id = f"request-{next(_requests)}"
        self.request_ids.append(request_id)
        objects = worker.begin_store(request_id, tokens)
        if objects:
            self.begun.setdefault(worker, []).append(objects)
            self.half_written.append(tokens)

    def _endstores(self, _step: steps.EndStores) -> None:
        self.l2.release_stores()

    # How it is driven

    def _first(self) -> Restored | None:
        """Return the restore whose turn it is."""
        return next(iter(self._unfinished()), None)

    def _unfinished(self) -> list[Restored]:
        return [restore for restore in self.restores if restore.succeeded is None]

    def _is_staged(self, first: Restored) -> bool:
        """Whether it is known that the window being staged is that of the first restore."""
        return self.server.copies or self._unfinished() == [first]

    def _pass_time(self, seconds: float) -> None:
        """Let so much time pass that each window which is being staged is late."""
        clock = self.server.clock
        with self.l2.changed:
            clock.ahead += seconds
            late = [*self.l2.loads, *self.l2.lookups]
        if not self.server.copies:
            # Whose windows these are is not known, but all of them began before.
            self.server.wait_given_up()
            self.l2.orphan(late)
        limit = self.server.storage.prefetch_restore_timeout_seconds
        for restore in self.restores if self.server.copies else []:
            if restore.asked_at is not None and clock.ahead - restore.asked_at >= limit:
                restore.doomed = True

    def _on_affinity_thread(self, job: Callable[[], None]) -> None:
        self._jobs.append(self._affinity.submit(job))
        self._jobs[-1].add_done_callback(lambda _: self._announce())

    def _announce(self) -> None:
        with self.l2.changed:
            self.l2.changed.notify_all()

    def _settle(self) -> None:
        with self.l2.changed:
            self._resting_since = None
            quiet = self.l2.changed.wait_for(self._is_quiet, SECONDS)
        first = self._first()
        assert quiet, f"{first.request_id if first else 'a job'} neither ends nor waits for anybody"
        if first is None and not self.server.copies:
            self._forget_windows()

    def _forget_windows(self) -> None:
        """Note that no engine-driven worker waits for a window any more.

        While one does, its windows and those of others, who take turns, are not told
        apart. A worker that leaves is answered before its window is given up.
        """
        lock = self.server.storage.restore_lock
        assert lock.acquire(timeout=SECONDS)
        lock.release()
        self.l2.orphan([*self.l2.loads, *self.l2.lookups])

    def _is_quiet(self) -> bool:
        """Whether all that goes on waits for the schedule."""
        if self.gate.held and not self._goes_on_beside_copy():
            return True
        if not all(job.done() for job in self._jobs):
            return False
        first = self._first()
        if first is None:
            return True
        if self.stopping or (first.doomed and self._is_staged(first)):
            return False
        return self.l2.waits() or self._is_refused_room()

    def _goes_on_beside_copy(self) -> bool:
        """Whether another worker's restore does: what came as a message is held by nobody."""
        workers = {restore.worker.instance_id for restore in self._unfinished()}
        by_message = self.server.setup.transfer == "pickle"
        return by_message and len(workers) > self.gate.holding and not self.stopping

    def _is_refused_room(self) -> bool:
        """Whether a window has found no room although all others had come to rest."""
        stores = self.server.stores_at_work() - self.l2.held_stores()
        if stores or not (self._waits_for_room() and self.l2.all_is_fetched()):
            self._resting_since = None
            return False
        begun = self.l2.lookups_begun
        if self._resting_since is None:
            self._resting_since = begun
        # The first lookup since then has found no room if a second one has begun.
        return begun >= self._resting_since + 2

    def _waits_for_room(self) -> bool:
        return bool(self.server.storage._waiting_windows)

    def _end_jobs(self) -> None:
        for job in self._jobs:
            job.result(SECONDS)

    def _note_what_is_left(self, loading_before: int) -> None:
        """Note, when the server closes L2, what it has not given back."""
        self.at_stop = AtStop(
            self.server.left_over(),
            loading_before,
            self.l2.loading(),
            len(self.l2.lookups),
            self.l2.storing(),
        )

    def _shut_down(self) -> None:
        self._affinity.shutdown()
        self._stopper.shutdown()
