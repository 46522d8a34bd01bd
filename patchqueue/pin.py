"""Writing `pins.lock` from what the package index offers for two upstream releases."""

import ast
import dataclasses
import itertools
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli_w
from packaging.metadata import Metadata
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pip._internal.models.link import Link
from pip._internal.models.target_python import TargetPython

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.fetch import fetch
from patchqueue.index import Index, connect, target
from patchqueue.layout import TREES, Layout
from patchqueue.pins import DONORS, MACHINES, TOOL, Artifact, fits
from patchqueue.worktree import import_tree, unpack

_HEADER = "# Written by `nox -s pin`, never by hand. PEP 751; paths are file names in the cache.\n"
_MINORS = range(8, 40)


@dataclasses.dataclass(frozen=True)
class _Release:
    """What an sdist says of itself."""

    sdist: Artifact
    metadata: Metadata
    tree_id: str
    commit: str | None


def pin(layout: Layout, versions: Mapping[str, str], *, incomplete: bool = False) -> list[str]:
    """Write the lock file for one release of each upstream.

    Args:
        versions: the release by tree, as in {"lmcache": "0.5.6", "vllm": "0.32.0"}.
        incomplete: go on without a donor wheel that the index lacks.

    Returns:
        What the index lacks, in words.

    Raises:
        QueueError: the index lacks a release or one of its donor wheels.
    """
    lacking: list[str] = []
    with connect() as index:
        sdists = {tree: _sdist(index, tree, versions[tree]) for tree in TREES}
    paths = fetch(layout.cache, sdists.values())
    releases = {tree: _release(sdists[tree], path) for tree, path in zip(TREES, paths, strict=True)}
    pythons = _pythons(release.metadata.requires_python for release in releases.values())
    with connect() as index:
        wheels = {
            donor: _wheels(index, donor, versions[tree], pythons, lacking)
            for (tree, _), donor in DONORS.items()
        }
    if lacking and not incomplete:
        raise QueueError(f"no package index that pip is configured for answers with {lacking[0]}")
    packages = [_package(release, wheels.pop(tree, ())) for tree, release in releases.items()]
    lock = Pylock(
        lock_version=Version("1.0"),
        requires_python=SpecifierSet(f">=3.{pythons[0]},<3.{pythons[-1] + 1}"),
        created_by="bounded-restore",
        packages=packages + [_donor(donor, found) for donor, found in wheels.items() if found],
        tool={TOOL: {"torch": _torch(releases["vllm"].metadata)}},
    )
    lock.validate()
    layout.pins.write_text(_HEADER + tomli_w.dumps(lock.to_dict()), encoding="utf-8")
    return lacking


def _sdist(index: Index, tree: str, version: str) -> Artifact:
    for link in index.find(tree, version, TargetPython()):
        if not link.is_wheel:
            return _artifact(tree, version, link)
    raise QueueError(
        f"no package index that pip is configured for answers with an sdist of {tree} "
        f"{version}; check the version, the network and `pip config list`"
    )


def _wheels(
    index: Index, project: str, version: str, pythons: Iterable[int], lacking: list[str]
) -> tuple[Artifact, ...]:
    """A wheel of `project` for every machine and every Python, without repetitions."""
    found: dict[str, Artifact] = {}
    for machine, minor in itertools.product(MACHINES, pythons):
        if any(fits(name, machine, f"3.{minor}") for name in found):
            continue
        suits = target(f"manylinux_2_28_{machine}", f"3.{minor}")
        wheels = [link for link in index.find(project, version, suits) if link.is_wheel]
        if not wheels:
            lacking.append(f"a wheel of {project} {version} for {machine} and Python 3.{minor}")
            continue
        found[wheels[0].filename] = _artifact(project, version, wheels[0])
    return tuple(found.values())


def _artifact(project: str, version: str, link: Link) -> Artifact:
    if link.hash_name != "sha256" or link.hash is None:
        raise QueueError(f"the package index gives no sha256 for {link.filename}")
    return Artifact(project, version, link.filename, link.hash, size=None)


def _release(sdist: Artifact, path: Path) -> _Release:
    with tempfile.TemporaryDirectory() as folder:
        files, repository = unpack(path, Path(folder)), Path(folder, "repository")
        repository.mkdir()
        git.output(repository, "init", "--quiet")
        return _Release(
            dataclasses.replace(sdist, size=path.stat().st_size),
            Metadata.from_email((files / "PKG-INFO").read_bytes(), validate=False),
            import_tree(repository, files),
            _commit(files / sdist.project / "_version.py"),
        )


def _pythons(ranges: Iterable[SpecifierSet | None]) -> list[int]:
    """The minors of Python 3 that every range admits."""
    specifiers = [specifier for specifier in ranges if specifier is not None]
    return [m for m in _MINORS if all(s.contains(f"3.{m}") for s in specifiers)]


def _torch(vllm: Metadata) -> str:
    requirements = vllm.requires_dist or []
    return next(str(r) for r in requirements if canonicalize_name(r.name) == "torch")


def _package(release: _Release, wheels: Iterable[Artifact]) -> Package:
    sdist = release.sdist
    tool = {"tree": release.tree_id, "url": _url(release.metadata), "tag": f"v{sdist.version}"}
    return Package(
        name=canonicalize_name(sdist.project),
        version=Version(sdist.version),
        requires_python=release.metadata.requires_python,
        sdist=PackageSdist(path=sdist.name, size=sdist.size, hashes={"sha256": sdist.sha256}),
        wheels=_locked(wheels),
        tool={TOOL: tool | ({"commit": release.commit} if release.commit else {})},
    )


def _donor(project: str, wheels: tuple[Artifact, ...]) -> Package:
    return Package(
        name=canonicalize_name(project),
        version=Version(wheels[0].version),
        wheels=_locked(wheels),
    )


def _locked(wheels: Iterable[Artifact]) -> list[PackageWheel]:
    return [PackageWheel(path=wheel.name, hashes={"sha256": wheel.sha256}) for wheel in wheels]


def _url(data: Metadata) -> str:
    """The repository among the project's links."""
    links = (data.project_urls or {}).values()
    repository = re.compile(r"https://github\.com/[^/]+/[^/]+")
    return next(link for link in links if repository.fullmatch(link.rstrip("/")))


def _commit(version_file: Path) -> str | None:
    """The (abbreviated) commit that setuptools-scm wrote into a release, if it did."""
    found = re.search(r"^__commit_id__ = commit_id = (.+)$", version_file.read_text(), re.MULTILINE)
    value = ast.literal_eval(found[1]) if found else None
    return value.removeprefix("g") if isinstance(value, str) else None
