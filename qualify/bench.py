"""A real engine that restores states, while servers take turns over one L2."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from qualify.evidence import Value
from qualify.observation import Expected, Observation
from qualify.observe import (
    RELEASE_SECONDS,
    Parts,
    Produced,
    compared_tokens,
    engine_canary,
    observe,
    registrations,
)
from tests.integration.engine import Completion, EngineConfig
from tests.integration.engine_api import EngineApi
from tests.integration.models import ModelShape, write_model
from tests.integration.server import ServerConfig
from tests.integration.stack import ServerSwitch, Stack, random_prompt
from tests.integration.units import MIB

SOURCE = "real engine"
CHUNK_TOKENS = 32  # One block of vLLM's, so that a small model has many windows.
SUFFIX_TOKENS = 8  # Too few for a chunk, output included: computed, never stored.
BLOCK_ARGUMENTS = ("--block-size", str(CHUNK_TOKENS))
# Short, so that vLLM soon notices when servers change places.
HEARTBEAT = {"lmcache.mp.heartbeat_interval": 3.0}


@dataclass(frozen=True)
class State:
    """A prompt. Those of different seeds share no beginning."""

    chunks: int
    seed: int
    salt: str = ""
    chunk_tokens: int = CHUNK_TOKENS

    @property
    def tokens(self) -> int:
        """How many tokens L2 can hold of it."""
        return self.chunks * self.chunk_tokens

    @property
    def prompt(self) -> list[int]:
        """All tokens."""
        return random_prompt(self.tokens + SUFFIX_TOKENS, self.seed)


@dataclass(frozen=True)
class Stored:
    """A state in L2, what the model said when it computed it, and what was registered."""

    state: State
    reference: Completion
    registrations: tuple[str, ...]
    files: tuple[Path, ...] = ()


@dataclass
class Bench:
    """The engine, its servers, and what they have stored."""

    shape: ModelShape
    config: ServerConfig
    switch: ServerSwitch
    ranks: int = 1
    stored: dict[State, Stored] = field(default_factory=dict)
    canaries: dict[int, str] = field(default_factory=dict)
    release_seconds: float = RELEASE_SECONDS

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk on one rank."""
        return CHUNK_TOKENS * self.shape.token_kv_bytes // self.ranks

    def serve(self, l1_chunks: int, window: int = 0) -> Stack:
        """Return the stack with an L1 of so many chunks, and windows if any."""
        config = replace(
            self.config,
            l1_bytes=l1_chunks * self.chunk_bytes,
            window_chunks=window or None,
        )
        return self.switch.serve(config)

    def store(self, states: list[State], window: int = 0) -> None:
        """Have states computed from nothing and stored, by a server with room for any."""
        largest = max(state.chunks for state in states)
        stack = self.serve(l1_chunks=(largest + 1) * self.ranks, window=window)
        for state in states:
            stack.forget()
            before = set(stack.server.l2_files())
            reference = stack.engine.complete(state.prompt, salt=state.salt)
            stack.server.wait_stored(len(before) + state.chunks * self.ranks)
            new = sorted(set(stack.server.l2_files()) - before)
            folder = stack.server.config.l2_folder
            self.stored[state] = Stored(
                state,
                reference,
                registrations(stack.server.status()),
                tuple(folder / name for name in new),
            )

    def restore(self, stack: Stack, state: State, expected: Expected | None = None) -> Observation:
        """Restore a stored state, which should be reused in full unless expected otherwise."""
        stored = self.stored[state]
        return observe(
            self.parts(stack),
            restoring(stack.engine, stored),
            expected or self.in_full(stack, state),
        )

    def in_full(self, stack: Stack, state: State) -> Expected:
        """What a restore of the whole state shows."""
        return self.through_windows(state, stack.server.config.window_chunks or 0)

    def through_windows(self, state: State, window: int) -> Expected:
        """What a restore of the whole state through windows shows; 0 for a whole plan."""
        return Expected(
            reused_tokens=state.tokens,
            promised_tokens=state.tokens,
            objects=state.chunks * self.ranks,
            windows=-(-state.chunks // window) * self.ranks if window else 0,
            installed_bytes=state.chunks * self.chunk_bytes * self.ranks if window else 0,
            peak_bytes=min(window, state.chunks) * self.chunk_bytes if window else None,
            registrations=self.stored[state].registrations,
        )

    def not_at_all(self, state: State, promised_tokens: int | None) -> Expected:
        """What a restore shows that fails, or that finds nothing."""
        return Expected(
            reused_tokens=0,
            promised_tokens=promised_tokens,
            objects=None,
            windows=None,
            installed_bytes=None,
            peak_bytes=None,
            registrations=self.stored[state].registrations,
        )

    def parts(self, stack: Stack) -> Parts:
        """What is asked around a restore."""
        canary = engine_canary(stack.engine)
        engine = id(stack.engine)
        if engine not in self.canaries:
            self.canaries[engine] = canary()
        return Parts(
            stack.server,
            stack.engine,
            self.ranks,
            canary,
            self.canaries[engine],
            self.release_seconds,
        )

    def setup(self, stack: Stack, state: State) -> dict[str, Value]:
        """What was chosen for a row."""
        return {
            "tokens": state.tokens,
            "chunks": state.chunks,
            "state_bytes": state.chunks * self.chunk_bytes,
            "window_chunks": stack.server.config.window_chunks or 0,
            "l1_bytes": stack.server.config.l1_bytes,
            "chunk_bytes": self.chunk_bytes,
            "fresh": bool(state.salt),
        }


def restoring(engine: EngineApi, stored: Stored) -> Callable[[], Produced]:
    """Run the prompt of a stored state."""

    def run() -> Produced:
        began = time.perf_counter()
        completion = engine.complete(stored.state.prompt, salt=stored.state.salt)
        seconds = time.perf_counter() - began
        output = compared_tokens(stored.reference, completion)
        return Produced(completion.cached_tokens, output, seconds)

    return run


@contextmanager
def running_bench(
    shape: ModelShape,
    largest: int,
    folder: Path,
    config: ServerConfig | None = None,
    ranks: int = 1,
) -> Iterator[Bench]:
    """Yield a bench whose engine has room for states of so many chunks; stop all at the end."""
    model = write_model(folder / "models" / shape.name, shape)
    room = (largest + 8) * CHUNK_TOKENS
    engine = EngineConfig(
        model,
        ranks=ranks,
        max_tokens=room,
        kv_cache_bytes=max(64 * MIB, 2 * room * shape.token_kv_bytes // ranks),
        arguments=BLOCK_ARGUMENTS,
        connector_settings=HEARTBEAT,
    )
    config = config or ServerConfig(l2_folder=folder / "l2", chunk_tokens=CHUNK_TOKENS)
    bench = Bench(shape, config, ServerSwitch(engine, folder), ranks)
    try:
        yield bench
    finally:
        bench.switch.stop()
