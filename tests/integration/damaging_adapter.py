"""LMCache's file system adapter, with damage between the lookup and the load.

It can also hold a load, as a store does that does not answer.

The server loads this as a plugin; `damage` says how, and gives the orders.
"""

import asyncio
from pathlib import Path
from typing import Any

from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig

from tests.integration.damage import LOSE, SHORTEN, held_mark, hold_order, shorten
from tests.integration.waiting import POLL_SECONDS

__all__ = ["DamagingAdapter", "FSL2AdapterConfig"]


class DamagingAdapter(FSL2Adapter):  # type: ignore[misc]
    """A file system that loses or shortens objects that it has just promised."""

    def __init__(self, config: Any, **_given_to_plugins: object) -> None:
        """Start like the file system adapter, which asks for nothing else."""
        super().__init__(config)
        self._folder = Path(config.base_path)
        self._loads_until_hold = 0

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

    async def _execute_load(self, keys: list[Any], objects: list[Any], task_id: int) -> None:
        if self._is_held():
            mark = held_mark(self._folder)
            mark.touch()
            while hold_order(self._folder).exists():
                await asyncio.sleep(POLL_SECONDS)
            mark.unlink(missing_ok=True)
        await super()._execute_load(keys, objects, task_id)

    def _is_held(self) -> bool:
        """Count a load down; tell whether it is the one to be held."""
        order = hold_order(self._folder)
        if not order.exists():
            self._loads_until_hold = 0
            return False
        self._loads_until_hold = self._loads_until_hold or int(order.read_text(encoding="utf-8"))
        self._loads_until_hold -= 1
        return self._loads_until_hold == 0
