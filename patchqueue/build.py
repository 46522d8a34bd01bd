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
from patchqueue.release import local_version
from patchqueue.wheel import laid_over, repack
from patchqueue.worktree import BASE, WorkTree

# Sources that a donor wheel holds in compiled form, or not at all.
_PACKAGE_FILES = (".py", ".pyi", ".json", ".jinja", ".yaml", ".yml", ".proto")


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
    for old in folder.glob(f"{name}-*.whl"):
        old.unlink()
    if donor is None:
        return Path(shutil.copy(compiled(tree, version, wanted), folder))
    (path,) = fetch(tree.layout.cache, [donor])
    base, patched = _changes(tree)
    return repack(path, name, version, laid_over(path, base, patched), folder)


def _changes(tree: WorkTree) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """What the series does to the files of the package, as content before and after."""
    status = git.text(
        tree.path, "diff", "--no-renames", "--name-status", BASE, "HEAD", "--", tree.pin.name
    )
    before: dict[str, bytes | None] = {}
    after: dict[str, bytes | None] = {}
    for line in status.splitlines():
        kind, _, path = line.partition("\t")
        if not path.endswith(_PACKAGE_FILES):
            raise QueueError(
                f"a patch changes {path}, which a repacked donor wheel cannot take up; only "
                f"{', '.join(_PACKAGE_FILES)} files can be repacked"
            )
        before[path] = None if kind == "A" else git.output(tree.path, "show", f"{BASE}:{path}")
        after[path] = None if kind == "D" else git.output(tree.path, "show", f"HEAD:{path}")
    return before, after
