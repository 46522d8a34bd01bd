"""LMCache's file system adapter with a latency before each read.

It stands for storage whose single stream is far slower than many at once. The server
loads it as a plugin.
"""

import time
from pathlib import Path
from typing import Any

from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig

__all__ = ["FSL2AdapterConfig", "SlowReads", "adapter"]

LATENCY_FILE = "latency"


class SlowReads(FSL2Adapter):  # type: ignore[misc]
    """A file system whose every read waits first, by itself."""

    def __init__(self, config: Any, **_given_to_plugins: object) -> None:
        """Start like the file system adapter, which asks for nothing else."""
        super().__init__(config)
        beside = Path(config.base_path).with_name(LATENCY_FILE)
        self._seconds = float(beside.read_text(encoding="utf-8"))

    def _load_object(self, *arguments: Any) -> bool:
        time.sleep(self._seconds)
        loaded: bool = super()._load_object(*arguments)
        return loaded


def adapter(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the settings of the adapter over a folder, and say how slow it is."""
    folder.with_name(LATENCY_FILE).write_text(str(seconds), encoding="utf-8")
    return {
        "type": "plugin",
        "module_path": "qualify.slow_reads",
        "class_name": "SlowReads",
        "config_class_name": "FSL2AdapterConfig",
        "adapter_params": {"base_path": str(folder)},
    }
