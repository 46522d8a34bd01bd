"""LMCache's file system adapter, with damage between the lookup and the load.

The server loads this as a plugin; `damage` says how, and gives the orders.
"""

from pathlib import Path
from typing import Any

from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig

from tests.integration.damage import LOSE, SHORTEN, shorten

__all__ = ["DamagingAdapter", "FSL2AdapterConfig"]


class DamagingAdapter(FSL2Adapter):  # type: ignore[misc]
    """A file system that loses or shortens objects that it has just promised."""

    def __init__(self, config: Any, **_given_to_plugins: object) -> None:
        """Start like the file system adapter, which asks for nothing else."""
        super().__init__(config)
        self._folder = Path(config.base_path)

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Carry out the orders, then load."""
        for order in self._folder.glob(f"*{LOSE}"):
            order.with_suffix("").unlink()
            order.unlink()
        for order in self._folder.glob(f"*{SHORTEN}"):
            shorten(order.with_suffix(""))
            order.unlink()
        task: int = super().submit_load_task(keys, objects)
        return task
