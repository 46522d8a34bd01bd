"""Read a server and an engine around one restore, over HTTP only."""

import hashlib
import http.client
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from qualify.observation import (
    PHASES,
    Expected,
    Health,
    Observation,
    Output,
    Reading,
    first_few,
)
from tests.integration.engine_api import Completion, EngineApi
from tests.integration.server_api import L1State, ServerApi
from tests.integration.waiting import WaitTimeoutError, wait_until
from tests.integration.watching import watched
from tests.integration.webclient import HttpError

SERVER_COUNTERS = {
    "l1_hit_tokens": "lmcache_mp_lookup_hit_l1_tokens",
    "l2_hit_tokens": "lmcache_mp_lookup_hit_l2_tokens",
    "loaded_objects": "lmcache_mp_l2_prefetch_load_completed_chunks",
    "restore_windows": "lmcache_mp_restore_windows",
    "restore_bytes": "lmcache_mp_restore_bytes",
}
PHASE_COUNTER = "lmcache_mp_restore_phase_elapsed_seconds"
ENGINE_COUNTERS = {
    "local_hit_tokens": "vllm:prefix_cache_hits",
    "external_hit_tokens": "vllm:external_prefix_cache_hits",
}

RELEASE_SECONDS = 30.0
CANARY = [7, 3, 11, 5, 2, 13]  # Too short for a chunk: never stored, never restored.
CANARY_TOKENS = 8
UNREACHABLE = (OSError, http.client.HTTPException, HttpError, WaitTimeoutError)

Answer = Callable[[], str]


@dataclass(frozen=True)
class Parts:
    """What is asked: a server, an engine or none, and how many ranks there must be."""

    server: ServerApi
    engine: EngineApi | None
    ranks: int
    canary: Answer
    canary_expected: str
    release_seconds: float = RELEASE_SECONDS

    def forget(self) -> None:
        """Empty the engine's prefix cache and L1, and wait until nothing is left in it.

        What is left after the deadline is not an error here: it is observed.
        """
        if self.engine is not None:
            self.engine.reset_prefix_cache()
        self.server.clear_l1()
        deadline = time.monotonic() + self.release_seconds
        wait_until(
            lambda: self.server.l1() == L1State(0, 0, 0, 0) or time.monotonic() >= deadline,
            "L1 is empty, or has not been for long",
            seconds=2 * self.release_seconds,
        )

    def read(self) -> Reading:
        """Read both once everything has been counted."""
        metrics = self.server.settled_metrics()
        counters = {name: metrics.total(each) for name, each in SERVER_COUNTERS.items()}
        for phase in PHASES:
            counters[f"seconds_{phase}"] = metrics.total(PHASE_COUNTER, phase=phase)
        if self.engine is not None:
            own = self.engine.metrics()
            counters |= {name: own.total(each) for name, each in ENGINE_COUNTERS.items()}
        l1, status = self.server.l1(), self.server.status()
        return Reading(
            l1_used_bytes=l1.used_bytes,
            l1_locks=l1.read_locks + l1.write_locks,
            peak_bytes=status["storage_manager"].get("restore", {}).get("peak_staging_bytes"),
            registrations=registrations(status),
            counters=counters,
        )

    def health(self) -> Health:
        """Ask every part how it is, and have all ranks answer one more request."""
        try:
            canary = self.canary()
            self.forget()
            left, registered = self.server.l1(), len(registrations(self.server.status()))
        except UNREACHABLE:  # Then that part is not healthy, and the reading says so.
            canary, left, registered = "", L1State(0, 0, 0, 0), 0
        return Health(
            engine=None if self.engine is None else self.engine.ready(),
            server=self.server.ready(),
            registered=registered,
            ranks=self.ranks,
            canary=canary,
            canary_expected=self.canary_expected,
            l1_used_bytes=left.used_bytes,
            l1_locks=left.read_locks + left.write_locks,
            staging_bytes=left.staging_bytes,
        )


@dataclass(frozen=True)
class Produced:
    """What came of a restore, as the side that asked for it saw it."""

    reused_tokens: int
    output: Output
    seconds: float


def observe(
    parts: Parts,
    restore: Callable[[], Produced],
    expected: Expected,
    before: Callable[[], None] = lambda: None,
) -> Observation:
    """Empty what lies above L2, restore, and read everything before and after.

    before() runs last before the restore, for what must not be disturbed, such as a
    cold page cache.
    """
    parts.forget()
    first = parts.read()
    before()
    with watched(lambda: parts.server.l1().used_bytes) as used:
        produced = restore()
    last = parts.read()
    return Observation(
        expected=expected,
        before=first,
        after=last,
        reused_tokens=produced.reused_tokens,
        output=produced.output,
        health=parts.health(),
        seconds=produced.seconds,
        largest_l1_bytes=max(used.largest, last.l1_used_bytes),
    )


def engine_canary(engine: EngineApi) -> Answer:
    """A short request, which every rank must take part in."""
    return lambda: token_digest(engine.complete(CANARY, CANARY_TOKENS).tokens)


def compared_tokens(reference: Completion, got: Completion) -> Output:
    """Compare greedy output with that of the reference."""
    pairs = zip(reference.tokens, got.tokens, strict=False)
    return Output(
        kind="output tokens",
        compared=min(len(reference.tokens), len(got.tokens)),
        reference_reused_tokens=reference.cached_tokens,
        expected=token_digest(reference.tokens),
        got=token_digest(got.tokens),
        differences=first_few(
            f"token {place} is {b}, not {a}" for place, (a, b) in enumerate(pairs) if a != b
        ),
    )


def token_digest(tokens: Iterable[int]) -> str:
    """The canonical hash of an output."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()


def registrations(status: dict[str, Any]) -> tuple[str, ...]:
    """What each rank has registered, in canonical words, whichever process it is."""
    entries = status.get("cache_context_meta", {}).values()
    return tuple(sorted(json.dumps(entry, sort_keys=True) for entry in entries))
