"""What wheels are built for."""

import platform
import shutil
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Platform:
    """What the wheels are for."""

    target: str
    machine: str
    python: str

    @classmethod
    def here(cls) -> "Platform":
        """CUDA where there is an NVIDIA driver, else the CPU; this machine, this Python."""
        target = "cuda" if shutil.which("nvidia-smi") else "cpu"
        return cls(target, platform.machine(), "{}.{}".format(*sys.version_info[:2]))
