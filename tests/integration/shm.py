"""Shared memory that processes of the stack leave in /dev/shm.

vLLM's KV cache lies there while LMCache drives the transfers, and stays behind
even after a clean exit. Only segments of our own processes are touched.
"""

import re
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")

ENGINE_KINDS = ("lmcache_kv_", "vllm_dist_", "psm_")
"""KV cache; what tensor-parallel ranks share; queues between vLLM's processes."""

SERVER_KINDS = ("lmcache_l1_pool_",)
"""The server's L1, where workers copy from and to it."""

_MAPPED = re.compile(rf"{FOLDER}/(\S+)$", re.MULTILINE)


def used_by(pids: Iterable[int], kinds: tuple[str, ...]) -> frozenset[str]:
    """Return the segments of some kinds that these running processes have mapped."""
    mapped = {name for pid in pids for name in _mapped(pid)}
    return frozenset(name for name in mapped if name.startswith(kinds))


def remove(names: Iterable[str]) -> frozenset[str]:
    """Remove these segments and return those that were still there."""
    left = frozenset(name for name in names if (FOLDER / name).exists())
    for name in left:
        (FOLDER / name).unlink(missing_ok=True)
    return left


def _mapped(pid: int) -> list[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return _MAPPED.findall(maps)
