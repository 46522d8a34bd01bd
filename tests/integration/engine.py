"""A real vLLM process that keeps its KV cache in an LMCache server."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration import shm
from tests.integration.devices import CPU, Device
from tests.integration.engine_api import Completion as Completion
from tests.integration.engine_api import EngineApi
from tests.integration.environment import process_environment, python
from tests.integration.ports import HOST, free_ports
from tests.integration.process import ProcessGroup
from tests.integration.transfer import LMCACHE_DRIVEN, Transfer
from tests.integration.units import MIB
from tests.integration.waiting import wait_until

BOOT_SECONDS = 900.0
STOP_SECONDS = 30.0
SERVED_NAME = "tiny"


@dataclass(frozen=True)
class EngineConfig:
    """How to start vLLM; server_port is known once a server runs."""

    model: Path
    server_port: int = 0
    device: Device = CPU
    transfer: Transfer = LMCACHE_DRIVEN
    ranks: int = 1
    max_tokens: int = 4096
    kv_cache_bytes: int = 256 * MIB
    load_failure_policy: str = "recompute"
    connector_settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """Return the command line of the engine."""
        # The model's name is part of every object's file name in L2. A name
        # relative to the working directory keeps it short.
        return [
            *(python(), "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", HOST, "--port", str(port)),
            *("--model", self.model.name, "--served-model-name", SERVED_NAME),
            *("--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", str(self.max_tokens)),
            *("--kv-cache-memory-bytes", str(self.kv_cache_bytes)),
            *("--tensor-parallel-size", str(self.ranks)),
            "--enable-prompt-tokens-details",
            *("--kv-transfer-config", json.dumps(self._transfer_config())),
            *self.device.arguments,
            *self.arguments,
        ]

    def process_environment(self, temporary_folder: Path) -> dict[str, str]:
        """Return the environment of the engine."""
        return process_environment(
            {
                "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_prefix_cache
                "TMPDIR": str(temporary_folder),  # Short: sockets lie in it.
                **self.device.environment(self.ranks),
                **self.environment,
            }
        )

    def _transfer_config(self) -> dict[str, Any]:
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_module_path": ("lmcache.integration.vllm.lmcache_mp_connector"),
            "kv_role": "kv_both",
            "kv_load_failure_policy": self.load_failure_policy,
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://{HOST}",
                "lmcache.mp.port": self.server_port,
                "lmcache.mp.mp_transfer_mode": self.transfer.mode,
                **self.connector_settings,
            },
        }


class Engine(EngineApi):
    """A vLLM process that starts, answers and is stopped."""

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        """Prepare an engine; its log goes to folder."""
        self.config = config
        self._port = free_ports(1)[0]
        self._temporary_folder = Path(tempfile.mkdtemp(prefix="bsr-"))
        self._segments: frozenset[str] = frozenset()
        self.process = ProcessGroup(
            "vllm",
            config.command(self._port),
            config.process_environment(self._temporary_folder),
            working_folder=config.model.parent,
            log_folder=folder,
        )
        super().__init__(f"http://{HOST}:{self._port}", SERVED_NAME, self.process.explain)

    def start(self) -> None:
        """Start the engine and return once it answers."""
        self._temporary_folder.mkdir(exist_ok=True)
        self.process.start()
        wait_until(
            lambda: self.ready() or not self.process.alive(),
            "vLLM answers /health",
            seconds=BOOT_SECONDS,
            explain=self.process.explain,
        )
        self.process.check_alive()
        self._segments = self._used_segments()

    def stop(self) -> frozenset[str]:
        """End the engine and return the shared memory that it left behind."""
        segments = self._segments | self._used_segments()
        self.process.stop(STOP_SECONDS)
        if self._temporary_folder.exists():
            shutil.rmtree(self._temporary_folder)
        return shm.remove(segments)

    def quarantined_blocks(self) -> int:
        """Return how many KV cache blocks a silent server may still write into."""
        return int(self.metrics().total("vllm:lmcache_mp_quarantined_blocks"))

    def server_losses(self) -> int:
        """Return how often a part of the engine has noticed that the server is gone."""
        return self.process.log_text().count("entering degraded mode")

    def server_returns(self) -> int:
        """Return how often a part of the engine has found the server again."""
        return self.process.log_text().count("resuming normal operation")

    def _used_segments(self) -> frozenset[str]:
        return shm.used_by(self.process.pids(), shm.ENGINE_KINDS)
