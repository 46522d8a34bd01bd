"""Tests that need an NVIDIA GPU. Without one the whole folder is skipped.

They drive the same harness as tests/integration, with vLLM on the GPU and the
CUDA wheels installed. Nothing heavy is imported to find out about the GPU.
"""

import shutil
import subprocess

import pytest

from tests.integration.fixtures import (
    end_in_order_on_sigterm,
    model,
    pytest_runtest_makereport,
)

__all__ = ["end_in_order_on_sigterm", "model", "pytest_runtest_makereport"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip every test of this folder on a machine without a GPU."""
    if reason := _missing_gpu():
        pytest.skip(reason)


def _missing_gpu() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "no NVIDIA GPU: nvidia-smi is not installed"
    listing = subprocess.run([command, "--list-gpus"], capture_output=True, text=True, check=False)
    if "GPU 0" not in listing.stdout:
        return f"no NVIDIA GPU: nvidia-smi says: {listing.stdout}{listing.stderr}"
    return ""
