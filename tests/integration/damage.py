"""Damage to objects in L2 that happens between the lookup of a hit and its load.

An order is an empty file beside the object, with one more suffix. The adapter of
`damaging_adapter` carries out all orders before the next load that it starts.

A load can also be held, so that something can happen in the middle of a restore:
the order to do so lies beside the folder of the objects.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.waiting import wait_until

LOSE = ".lose"
SHORTEN = ".shorten"

HOLD_SECONDS = 60.0


def adapter(folder: Path) -> dict[str, Any]:
    """Return the settings of an L2 adapter that takes orders, with objects in folder.

    Its server needs `environment.plugin_environment`.
    """
    return {
        "type": "plugin",
        "module_path": "tests.integration.damaging_adapter",
        "class_name": "DamagingAdapter",
        "config_class_name": "FSL2AdapterConfig",
        "adapter_params": {"base_path": str(folder)},
    }


def order(path: Path, what: str) -> None:
    """Have the object at path lost or shortened at the next load of any object."""
    path.with_name(path.name + what).touch(exist_ok=False)


def hold_order(folder: Path) -> Path:
    """Return the file that says which load is to be held: its number from now on."""
    return folder.with_name(folder.name + ".hold")


def held_mark(folder: Path) -> Path:
    """Return the file that exists while a load is held."""
    return folder.with_name(folder.name + ".held")


@contextmanager
def held_load(folder: Path, number: int) -> Iterator[Callable[[], None]]:
    """Hold a load from now on, the first being 1, until the with block ends.

    What it gives waits until the load is held.
    """
    draft = folder.with_name(folder.name + ".draft")
    draft.write_text(str(number), encoding="utf-8")
    draft.rename(hold_order(folder))  # Whole from the first moment.
    try:
        yield lambda: wait_until(
            held_mark(folder).exists, f"load {number} is held", seconds=HOLD_SECONDS
        )
    finally:
        hold_order(folder).unlink()
        # A server that was killed cannot take its mark away.
        held_mark(folder).unlink(missing_ok=True)


def shorten(path: Path) -> None:
    """Cut a file to half its size, now."""
    os.truncate(path, path.stat().st_size // 2)
