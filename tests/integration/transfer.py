"""The ways in which KV moves between vLLM and an LMCache server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """One transfer mode, as the server and the engine are told about it."""

    name: str
    mode: str
    shared_l1: bool = False


LMCACHE_DRIVEN = Transfer("lmcache_driven", "lmcache_driven")
"""The server copies: CUDA IPC on a GPU, shared memory on a CPU."""

ENGINE_PICKLE = Transfer("engine_driven-pickle", "engine_driven")
"""The worker copies; objects travel in messages. One KV cache group only."""

ENGINE_SHM = Transfer("engine_driven-shm", "engine_driven", shared_l1=True)
"""The worker copies; the server's L1 is mapped. One KV cache group only."""
