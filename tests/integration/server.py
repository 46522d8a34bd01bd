"""A real LMCache server process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration import shm
from tests.integration.environment import process_environment, program
from tests.integration.ports import HOST, free_ports
from tests.integration.process import ProcessFailedError, ProcessGroup
from tests.integration.server_api import L1State as L1State
from tests.integration.server_api import ServerApi
from tests.integration.transfer import LMCACHE_DRIVEN, Transfer
from tests.integration.units import GIB, MIB
from tests.integration.waiting import Steady, wait_until

BOOT_SECONDS = 300.0
STOP_SECONDS = 20.0
STORE_SECONDS = 60.0
QUIET_POLLS = 20


@dataclass(frozen=True)
class ServerConfig:
    """How to start a server. L2 is the file system, below l2_folder.

    adapter overrides settings of the L2 adapter, its type included; arguments are
    added to the command line.
    """

    l2_folder: Path
    adapter: Mapping[str, Any] = field(default_factory=dict)
    l1_bytes: int = 256 * MIB
    chunk_tokens: int = 256
    transfer: Transfer = LMCACHE_DRIVEN
    window_chunks: int | None = None
    separate_object_groups: bool = True
    workers: int = 2
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, ports: "ServerPorts") -> list[str]:
        """Return the command line of the server."""
        adapter = {"type": "fs", "base_path": str(self.l2_folder), **self.adapter}
        return [
            *(program("lmcache"), "server", "--host", HOST),
            *("--port", str(ports.messages)),
            *("--http-port", str(ports.http)),
            *("--l1-size-gb", str(self.l1_bytes / GIB)),
            *("--eviction-policy", "LRU"),
            *("--chunk-size", str(self.chunk_tokens)),
            *("--max-workers", str(self.workers)),
            *("--supported-transfer-mode", self.transfer.mode),
            *(["--separate-object-groups"] if self.separate_object_groups else []),
            *("--l2-adapter", json.dumps(adapter)),
            *self._shared_l1_arguments(ports),
            *self._window_arguments(),
            *self.arguments,
        ]

    def _shared_l1_arguments(self, ports: "ServerPorts") -> list[str]:
        if not self.transfer.shared_l1:
            return []
        return ["--shm-name", f"lmcache_l1_pool_{ports.messages}", "--no-l1-use-lazy"]

    def _window_arguments(self) -> list[str]:
        # Without a window the flag is left out: that is how users start it.
        if self.window_chunks is None:
            return []
        return ["--l2-prefetch-window-chunks", str(self.window_chunks)]


@dataclass(frozen=True)
class ServerPorts:
    """Where a server listens. They stay the same over a restart."""

    messages: int
    http: int


class LMCacheServer(ServerApi):
    """A server that starts, answers, is killed or suspended, and starts again."""

    def __init__(
        self, config: ServerConfig, folder: Path, ports: ServerPorts | None = None
    ) -> None:
        """Prepare a server; its log goes to folder. Ports are chosen if not given."""
        self.config = config
        self.ports = ports or ServerPorts(*free_ports(2))
        self.process = ProcessGroup(
            "lmcache-server",
            config.command(self.ports),
            process_environment({"OMP_NUM_THREADS": "1", **config.environment}),
            working_folder=folder,
            log_folder=folder,
        )
        super().__init__(f"http://{HOST}:{self.ports.http}", self.process.explain)
        self._segments: frozenset[str] = frozenset()

    def start(self) -> None:
        """Start the server and return once it answers."""
        self._start_until_decided()
        self.process.check_alive()
        self._segments = self._used_segments()

    def start_refused(self) -> tuple[int, str]:
        """Start a server that must refuse to run.

        Return its exit code and what it printed.
        """
        self._start_until_decided()
        code = self.process.exit_code()
        if code is None:
            raise ProcessFailedError(f"not refused:\n{self.process.explain()}")
        return code, self.process.log_text()

    def stop(self) -> frozenset[str]:
        """End the server and return the shared memory that it left behind."""
        segments = self._segments | self._used_segments()
        self.process.stop(STOP_SECONDS)
        return shm.remove(segments)

    def l2_files(self) -> dict[str, int]:
        """Return the names and sizes of the objects on the file system."""
        paths = self.config.l2_folder.glob("**/*.data")
        return {path.name: path.stat().st_size for path in paths}

    def wait_stored(self, objects: int) -> None:
        """Wait until L2 holds exactly so many objects and no store is under way."""
        wait_until(
            lambda: len(self.l2_files()) == objects and self.stores_settled(),
            f"{objects} objects in L2 and no store under way",
            seconds=STORE_SECONDS,
            explain=self._explain_stores,
        )

    def wait_quiet(self) -> None:
        """Wait until no store is under way and L2 stays as it is.

        For when the number of objects is not known; prefer wait_stored.
        """
        calm = Steady(QUIET_POLLS)
        wait_until(
            lambda: calm.holds(condition=self.stores_settled(), value=self.l2_files()),
            "no store under way and L2 unchanged",
            seconds=STORE_SECONDS,
            explain=self._explain_stores,
        )

    def _used_segments(self) -> frozenset[str]:
        return shm.used_by(self.process.pids(), shm.SERVER_KINDS)

    def _start_until_decided(self) -> None:
        self.process.start()
        wait_until(
            lambda: self.ready() or not self.process.alive(),
            "the LMCache server answers /healthcheck",
            seconds=BOOT_SECONDS,
            explain=self.process.explain,
        )

    def _explain_stores(self) -> str:
        files = f"{len(self.l2_files())} objects in L2"
        return f"{files}\n{self.storage_status()}\n{self.process.explain()}"
