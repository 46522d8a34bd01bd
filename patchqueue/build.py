"""Wheels of the patched trees."""

import shutil
from pathlib import Path

from patchqueue import git
from patchqueue.apply import apply
from patchqueue.compile import compiled
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.layout import Layout
from patchqueue.pins import Pins
from patchqueue.platforms import Platform
from patchqueue.release import MARK, local_version
from patchqueue.wheel import laid_over, repack
from patchqueue.worktree import BASE, WorkTree

# What a donor wheel holds as it is in the sources, and what no wheel holds.
_PACKAGE_FILES = (".py", ".pyi", ".json", ".jinja", ".yaml", ".yml", ".proto")
_NOT_SHIPPED = ("docs/", "tests/", "examples/", "benchmarks/", ".buildkite/", ".github/")
_PROSE = (".md", ".rst")


def build(layout: Layout, wanted: Platform, folder: Path) -> list[Path]:
    """Write a wheel of each patched tree into `folder`, in place of an older one.

    Raises:
        QueueError: as `apply`; or there is no donor, or no compiler, for `wanted`.
    """
    pins = Pins.read(layout.pins)
    folder.mkdir(parents=True, exist_ok=True)
    return [_wheel(tree, pins, wanted, folder) for tree in apply(layout)]


def _wheel(tree: WorkTree, pins: Pins, wanted: Platform, folder: Path) -> Path:
    name = tree.pin.name
    version = f"{tree.pin.version}+{local_version(tree.layout, wanted.target)}"
    donor = pins.donor(name, wanted.target, wanted.machine, wanted.python)
    if donor is None:
        made = Path(shutil.copy(compiled(tree, version, wanted), folder))
    else:
        (path,) = fetch(tree.layout.cache, [donor])
        base, patched = _changes(tree)
        made = repack(path, name, version, laid_over(path, base, patched), folder)
    for old in folder.glob(f"{name}-*+{MARK}.*.whl"):
        if old != made and old.name.split("-", 2)[2] == made.name.split("-", 2)[2]:
            old.unlink()
    return made


def _changes(tree: WorkTree) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """What the series does to the files of the package, as content before and after."""
    diff = git.output(tree.path, "diff", "--raw", "--no-renames", "-z", BASE, "HEAD").decode()
    fields = diff.split("\0")[:-1]
    before: dict[str, bytes | None] = {}
    after: dict[str, bytes | None] = {}
    for raw, path in zip(fields[::2], fields[1::2], strict=True):
        if path.startswith(_NOT_SHIPPED) or path.endswith(_PROSE):
            continue
        _, mode, _, _, kind = raw.split()
        shipped = path.startswith(f"{tree.pin.name}/") and path.endswith(_PACKAGE_FILES)
        if not shipped or mode == "120000":
            raise QueueError(
                f"a patch changes {path}, which a repacked donor wheel cannot take up: only plain "
                f"{', '.join(_PACKAGE_FILES)} files of the package {tree.pin.name} can"
            )
        before[path] = None if kind == "A" else git.output(tree.path, "show", f"{BASE}:{path}")
        after[path] = None if kind == "D" else git.output(tree.path, "show", f"HEAD:{path}")
    return before, after
