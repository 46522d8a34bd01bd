"""The environment and the programs with which the tests start processes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]

# What a developer's shell sets for these programs must not change a test.
_PROGRAM_PREFIXES = ("LMCACHE_", "VLLM_")
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "PYTHONUNBUFFERED": "1",
}


def process_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that the tests start."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_PROGRAM_PREFIXES)
    }
    return {**inherited, **_SETTINGS, **extra}


def plugin_environment() -> dict[str, str]:
    """Return what a server needs in its environment to find the adapters of the tests."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])])}


def python() -> str:
    """Return the interpreter of the environment that holds the wheels."""
    return sys.executable


def program(name: str) -> str:
    """Return the path of a command that the installed wheels brought along."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: install the wheels from dist/ for {sys.executable}"
        )
    return str(path)
