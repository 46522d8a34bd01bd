"""Restores by a client without a model, for states and geometries of any size."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qualify.evidence import Value
from qualify.observation import Expected, Observation, Output, first_few
from qualify.observe import RELEASE_SECONDS, Parts, Produced, observe, registrations
from tests.integration import made_objects
from tests.integration.client import Blocks, Client, Deployment, State, connected
from tests.integration.environment import plugin_environment
from tests.integration.geometry import CHUNK_TOKENS, DEEPSEEK_V4_FLASH, Geometry, Kind
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import GIB

SOURCE = "client without a model"
IN_PLACE = "in place"
CANARY = State(chunks=1, seed=999)
SHARED_BLOCKS = 13  # Divides no window: the same place in the next is another block.
SMALL_CHUNK_BYTES = 64 * 1024


class Bench:
    """A server and a client of it, which knows the bytes of every state."""

    def __init__(self, server: LMCacheServer, client: Client, geometry: Geometry) -> None:
        """Note what the ranks have registered."""
        self.server = server
        self.client = client
        self.geometry = geometry
        self.release_seconds = RELEASE_SECONDS
        self._registrations = registrations(server.status())

    @property
    def window(self) -> int:
        """W; 0 for whole plans."""
        return self.server.config.window_chunks or 0

    def store(self, state: State) -> None:
        """Store a state through real files; L1, which is emptied first, has room for it."""
        self.server.clear_l1()
        before = len(self.server.l2_files())
        self.client.store(state)
        self.server.wait_stored(before + state.chunks * len(self.client.ranks))

    def restore(
        self,
        state: State,
        expected: Expected | None = None,
        before: Callable[[], None] | None = None,
    ) -> Observation:
        """Restore a state and compare what lies in the blocks afterwards."""
        ranks = len(self.client.ranks)
        parts = Parts(
            self.server, None, ranks, lambda: self.canary(), IN_PLACE, self.release_seconds
        )
        return observe(
            parts,
            lambda: self._produced(state),
            expected or self.in_full(state),
            before or (lambda: None),
        )

    def canary(self) -> str:
        """Have every rank restore one chunk."""
        attempt = self.client.attempt(CANARY)
        if not attempt.found or not all(attempt.retrieved):
            return "nothing"
        return "wrong bytes" if self._differences(CANARY) else IN_PLACE

    def in_full(self, state: State) -> Expected:
        """What a restore of the whole state shows."""
        return self.through_windows(state, self.window)

    def through_windows(self, state: State, window: int) -> Expected:
        """What a restore of the whole state through windows shows; 0 for a whole plan."""
        ranks = len(self.client.ranks)
        tokens = state.chunks * CHUNK_TOKENS
        return Expected(
            reused_tokens=tokens,
            promised_tokens=tokens,
            objects=state.chunks * ranks,
            windows=-(-state.chunks // window) * ranks if window else 0,
            installed_bytes=state.chunks * self.geometry.object_bytes * ranks if window else 0,
            peak_bytes=min(window, state.chunks) * self.geometry.staged_bytes if window else None,
            registrations=self._registrations,
        )

    def not_at_all(self) -> Expected:
        """What a hit shows that does not fit: nothing of it is promised."""
        return Expected(0, 0, None, None, None, None, self._registrations)

    def setup(self, state: State) -> dict[str, Value]:
        """What was chosen for a row."""
        return {
            "tokens": state.chunks * CHUNK_TOKENS,
            "chunks": state.chunks,
            "state_bytes": state.chunks * self.geometry.object_bytes,
            "window_chunks": self.window,
            "l1_bytes": self.server.config.l1_bytes,
            "chunk_bytes": self.geometry.staged_bytes,
            "fresh": bool(state.salt),
            "geometry": self.geometry.name,
            "tensors": self.geometry.tensors,
        }

    def _produced(self, state: State) -> Produced:
        for rank in self.client.ranks:
            rank.wipe()
        attempt = self.client.attempt(state)
        whole = attempt.found == state.chunks and all(attempt.retrieved)
        reused = attempt.found * CHUNK_TOKENS if whole else 0
        return Produced(reused, self._output(state, whole), attempt.seconds)

    def _output(self, state: State, whole: bool) -> Output:
        if not whole:  # Then nothing is exposed, and there is nothing to compare.
            return Output("answers", len(self.client.ranks), 0, "", "")
        return Output(
            kind="chunks in their blocks",
            compared=state.chunks * len(self.client.ranks),
            reference_reused_tokens=0,  # The reference is made from the keys.
            expected="",
            got="",
            differences=first_few(self._differences(state)),
        )

    def _differences(self, state: State) -> list[str]:
        return [
            f"chunk {each.chunk} of {each.kind} on rank {number}"
            for number, rank in enumerate(self.client.ranks)
            for each in rank.differences(state)
        ]


@contextmanager
def running_bench(
    config: ServerConfig, geometry: Geometry, blocks: Blocks, folder: Path, ranks: int = 1
) -> Iterator[Bench]:
    """Yield a server that runs with config and a client of it."""
    folder.mkdir(parents=True)
    with (
        running_server(config, folder) as server,
        connected(server.ports.messages, Deployment(geometry, ranks), blocks) as client,
    ):
        yield Bench(server, client, geometry)


def paper_config(folder: Path, window: int, l1_bytes: int = GIB) -> ServerConfig:
    """A server over objects of the paper's model, made on the spot.

    One object holds all groups of a chunk, as in the paper and by default.
    """
    return ServerConfig(
        folder / "l2",
        adapter=made_objects.adapter(DEEPSEEK_V4_FLASH.object_bytes),
        l1_bytes=l1_bytes,
        window_chunks=window or None,
        separate_object_groups=False,
        environment=plugin_environment(),
    )


def paper_blocks(largest: int) -> Blocks:
    """Small tensors have a block for every chunk; large ones a few, which chunks share."""

    def blocks(kind: Kind) -> int:
        return largest if kind.chunk_bytes <= SMALL_CHUNK_BYTES else SHARED_BLOCKS

    return blocks


def with_concurrency(config: ServerConfig, concurrency: int) -> ServerConfig:
    """Let the server read so many files at once; 0 leaves upstream's order."""
    if not concurrency:
        return config
    environment = {**config.environment, "LMCACHE_FS_LOAD_CONCURRENCY": str(concurrency)}
    return replace(config, environment=environment)
