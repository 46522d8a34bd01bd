"""Damage to objects in L2 that happens between the lookup of a hit and its load.

An order is an empty file beside the object, with one more suffix. The adapter of
`damaging_adapter` carries out all orders before the next load that it starts.
"""

import os
from pathlib import Path
from typing import Any

LOSE = ".lose"
SHORTEN = ".shorten"

_ROOT = Path(__file__).parents[2]


def adapter(folder: Path) -> dict[str, Any]:
    """Return the settings of an L2 adapter that takes orders, with objects in folder."""
    return {
        "type": "plugin",
        "module_path": "tests.integration.damaging_adapter",
        "class_name": "DamagingAdapter",
        "config_class_name": "FSL2AdapterConfig",
        "adapter_params": {"base_path": str(folder)},
    }


def environment() -> dict[str, str]:
    """Return what a server needs in its environment to find the adapter."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])])}


def order(path: Path, what: str) -> None:
    """Have the object at path lost or shortened at the next load of any object."""
    path.with_name(path.name + what).touch(exist_ok=False)


def shorten(path: Path) -> None:
    """Cut a file to half its size, now."""
    os.truncate(path, path.stat().st_size // 2)
