"""What is qualified, and on which machine."""

import hashlib
import json
import os
import platform
from pathlib import Path

from patchqueue import git
from patchqueue.layout import Layout
from patchqueue.pins import Pins
from patchqueue.progress import digests
from qualify.evidence import Machine, Subject
from tests.integration.wheels import installed_versions

ROOT = Path(__file__).parents[1]
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def subject() -> Subject:
    """The installed wheels, and this checkout."""
    layout = Layout.of(ROOT)
    versions = {
        name: version
        for package in ("lmcache", "vllm", "torch")
        for name, version in installed_versions(package).items()
    }
    pins = {name: tree.version for name, tree in Pins.read(layout.pins).trees.items()}
    queue = json.dumps(digests(layout), sort_keys=True).encode()
    status = _git("status", "--porcelain")
    return Subject(
        versions, pins, hashlib.sha256(queue).hexdigest(), _git("rev-parse", "HEAD"), bool(status)
    )


def this_machine() -> Machine:
    """The machine, without its name."""
    cores = len(os.sched_getaffinity(0))
    spelled = NUMBERS[cores] if cores < len(NUMBERS) else str(cores)
    return Machine(
        f"{spelled} CPU core{'' if cores == 1 else 's'}",
        platform.machine(),
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def available_bytes() -> int:
    """Memory that can be taken without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _git(*arguments: str) -> str:
    """What git says; nothing in a copy of the repository that has no history."""
    done = git.run(ROOT, *arguments)
    return "" if done.returncode else done.stdout.decode().strip()
