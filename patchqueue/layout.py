"""Where everything lives, in the checkout and outside it."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "BOUNDED_RESTORE_CACHE"
TREES = ("lmcache", "vllm")


@dataclass(frozen=True)
class Layout:
    """The paths of one checkout and of its cache."""

    root: Path
    cache: Path
    checkout: Path | None = None  # what paths are shown relative to; else `root`

    @classmethod
    def of(cls, root: Path) -> "Layout":
        """The layout of the checkout at `root`; the cache is shared by all checkouts."""
        cache = os.environ.get(CACHE_VARIABLE)
        folder = Path(cache) if cache else platformdirs.user_cache_path("bounded-restore")
        return cls(root.resolve(), folder.expanduser().resolve())

    @property
    def pins(self) -> Path:
        """The lock file of the pinned upstreams."""
        return self.root / "pins.lock"

    @property
    def series(self) -> Path:
        """The order of the patches over both trees."""
        return self.root / "series"

    @property
    def patches(self) -> Path:
        """The folder that the paths in `series` are relative to."""
        return self.root / "patches"

    @property
    def dist(self) -> Path:
        """Where `build` leaves the wheels."""
        return self.root / "dist"

    def shown(self, path: Path) -> str:
        """A path as a user at the checkout's root would type it."""
        return str(path.relative_to(self.checkout or self.root))

    def scratch(self, folder: Path) -> "Layout":
        """The layout of a copy of the queue in a folder of this checkout."""
        return Layout(folder, self.cache, self.checkout or self.root)

    def worktree(self, tree: str) -> Path:
        """The git work tree of an upstream, with the series as commits."""
        return self.root / "work" / tree
