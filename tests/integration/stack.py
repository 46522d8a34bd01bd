"""A server and an engine, and the steps of storing and restoring a prompt."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.integration.engine import Completion, Engine, EngineConfig
from tests.integration.models import VOCABULARY
from tests.integration.ports import free_ports
from tests.integration.server import L1State, LMCacheServer, ServerConfig, ServerPorts
from tests.integration.waiting import wait_until

SWITCH_SECONDS = 120.0


@dataclass(frozen=True)
class Stored:
    """What came of a request whose prompt no cache knew."""

    completion: Completion
    files: dict[str, int]
    """The objects that it added to L2, and their sizes."""


@dataclass(frozen=True)
class Restore:
    """What came of a request whose prompt was in L2 only."""

    completion: Completion
    external_hits: int
    l1_before: L1State
    tokens_found_in_l1: int
    tokens_found_in_l2: int
    objects_loaded: int


@dataclass(frozen=True)
class Stack:
    """A running server and a running engine that uses it."""

    server: LMCacheServer
    engine: Engine

    def store(self, prompt: list[int], objects: int) -> Stored:
        """Compute a new prompt, and wait until it has added objects to L2."""
        before = self.server.l2_files()
        completion = self.engine.complete(prompt)
        self.server.wait_stored(len(before) + objects)
        after = self.server.l2_files()
        return Stored(completion, {name: after[name] for name in after.keys() - before.keys()})

    def forget(self) -> None:
        """Empty vLLM's prefix cache and the server's L1. L2 stays."""
        self.engine.reset_prefix_cache()
        self.server.clear_l1()
        self.server.wait_released()

    def restore(self, prompt: list[int]) -> Restore:
        """Run a prompt with the caches above L2 empty, and report what was used."""
        self.forget()
        l1_before = self.server.l1()
        hits_before = self.engine.external_hits()
        before = self.server.settled_metrics()
        completion = self.engine.complete(prompt)
        after = self.server.settled_metrics()

        def grown(name: str) -> int:
            return int(after.total(name) - before.total(name))

        return Restore(
            completion=completion,
            external_hits=self.engine.external_hits() - hits_before,
            l1_before=l1_before,
            tokens_found_in_l1=grown("lmcache_mp_lookup_hit_l1_tokens"),
            tokens_found_in_l2=grown("lmcache_mp_lookup_hit_l2_tokens"),
            objects_loaded=grown("lmcache_mp_l2_prefetch_load_completed_chunks"),
        )


class ServerSwitch:
    """An engine that stays up while servers take turns on the same ports."""

    def __init__(self, engine: EngineConfig, folder: Path) -> None:
        """Prepare the engine; logs go below folder. It starts with the first server."""
        messages, http = free_ports(2)
        self._ports = ServerPorts(messages, http)
        self._folder = folder
        self._engine = Engine(replace(engine, server_port=messages), folder)
        self._server: LMCacheServer | None = None
        self._turns = 0

    def serve(self, config: ServerConfig) -> Stack:
        """Return a stack whose server runs with config; start it if it does not run.

        The engine misses a server only after its first request to it.
        """
        if self._server is None or self._server.config != config:
            return Stack(self._exchange(config), self._engine)
        return Stack(self._server, self._engine)

    def crash(self) -> None:
        """Kill the server that runs now, and wait until the engine has missed it."""
        losses = self._engine.server_losses()
        self._running().process.kill()
        self._wait_for_engine(lambda: self._engine.server_losses() - losses, "gone")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the server where it is until the with block ends, and let it go on.

        The engine has missed it when the block begins, and found it again afterwards.
        """
        losses, returns = self._engine.server_losses(), self._engine.server_returns()
        self._running().process.suspend()
        try:
            self._wait_for_engine(lambda: self._engine.server_losses() - losses, "gone")
            yield
        finally:
            self._running().process.resume()
        self._wait_for_engine(lambda: self._engine.server_returns() - returns, "back")

    def revive(self) -> None:
        """Start the killed server again, and wait until the engine has found it."""
        returns = self._engine.server_returns()
        self._running().start()
        self._wait_for_engine(lambda: self._engine.server_returns() - returns, "back")

    def stop(self) -> None:
        """End the engine and the server."""
        self._engine.stop()
        if self._server is not None:
            self._server.stop()

    def _running(self) -> LMCacheServer:
        assert self._server is not None, "no server has been asked for"
        return self._server

    def _exchange(self, config: ServerConfig) -> LMCacheServer:
        retired = self._server
        returns = self._engine.server_returns() if retired else 0
        if retired is not None:
            self._retire(retired)
        self._turns += 1
        folder = self._folder / f"server-{self._turns}"
        folder.mkdir()
        # Known before it runs: stop() ends it even if the engine does not start.
        server = self._server = LMCacheServer(config, folder, self._ports)
        server.start()
        if retired is None:
            self._engine.start()
        else:
            self._wait_for_engine(lambda: self._engine.server_returns() - returns, "back")
        return server

    def _retire(self, server: LMCacheServer) -> None:
        # A server that is back before the engine has missed it is taken for the
        # old one: nobody would register with it.
        losses = self._engine.server_losses()
        server.stop()
        self._wait_for_engine(lambda: self._engine.server_losses() - losses, "gone")

    def _wait_for_engine(self, noticed: Callable[[], int], what: str) -> None:
        parts = 1 + self._engine.config.ranks  # The scheduler and its workers.
        wait_until(
            lambda: noticed() >= parts,
            f"vLLM notices that the server is {what}",
            seconds=SWITCH_SECONDS,
            explain=self._engine.process.explain,
        )


@contextmanager
def running_stack(server: ServerConfig, engine: EngineConfig, folder: Path) -> Iterator[Stack]:
    """Start a server, then an engine that uses it; stop both at the end.

    The engine's server_port is filled in here. Logs go to folder.
    """
    with running_server(server, folder) as started:
        port = started.ports.messages
        process = Engine(replace(engine, server_port=port), folder)
        try:
            process.start()
            yield Stack(started, process)
        finally:
            process.stop()


@contextmanager
def running_server(config: ServerConfig, folder: Path) -> Iterator[LMCacheServer]:
    """Start a server and stop it at the end. Its log goes to folder."""
    server = LMCacheServer(config, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def refusal_of(config: ServerConfig, folder: Path) -> tuple[int, str]:
    """Return exit code and output of a server that must refuse to start."""
    server = LMCacheServer(config, folder)
    try:
        return server.start_refused()
    finally:
        server.stop()


def random_prompt(tokens: int, seed: int) -> list[int]:
    """Return a prompt of so many tokens that shares no beginning with other seeds."""
    generator = random.Random(seed)
    return [generator.randrange(1, VOCABULARY) for _ in range(tokens)]
