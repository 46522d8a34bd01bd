"""Whether the pins still hold, and whether there is something newer."""

from collections.abc import Sequence

from packaging.version import Version

from patchqueue.errors import QueueError
from patchqueue.index import Index, connect
from patchqueue.layout import Layout
from patchqueue.pins import Artifact, Pins, Tree


def check_pins(layout: Layout) -> str:
    """Ask the package index for newer releases, and for the hashes of the pinned files.

    Raises:
        QueueError: a pinned file is gone, or has another hash, or no index answers.
    """
    pins = Pins.read(layout.pins)
    artifacts = [*(tree.sdist for tree in pins.trees.values()), *pins.wheels]
    with connect() as index:
        offered = {name: index.versions(name) for name in pins.trees}
        if not any(offered.values()):
            raise QueueError(
                f"no package index that pip is configured for answers with a release of "
                f"{' or '.join(offered)}; check the network and `pip config list`"
            )
        faults = [fault for file in artifacts if (fault := _fault(index, file))]
    newer = {
        name: [version for version in offered[name] if version > Version(tree.version)]
        for name, tree in pins.trees.items()
    }
    if faults:
        raise QueueError("\n".join(faults))
    lines = [_news(tree, newer[name]) for name, tree in pins.trees.items()]
    if goals := [f"{name}=={versions[-1]}" for name, versions in newer.items() if versions]:
        lines.append(f"`nox -s rebase -- {' '.join(goals)}` brings the series there")
    return "\n".join([f"{len(artifacts)} pinned files have the pinned hashes", *lines])


def _fault(index: Index, artifact: Artifact) -> str | None:
    link = index.locate(artifact.project, artifact.version, artifact.name)
    if link is None:
        return (
            f"{artifact.name}: no package index that pip is configured for offers it any more; "
            "keep the copy in the cache, and rebase onto another release"
        )
    if link.hash != artifact.sha256:
        return (
            f"{artifact.name}: the package index says {link.hash_name} {link.hash}, but pins.lock "
            f"says {artifact.sha256}; do not use it before you know why"
        )
    return None


def _news(tree: Tree, newer: Sequence[Version]) -> str:
    if not newer:
        return f"{tree.name} {tree.version} is the newest release"
    return f"{tree.name} {tree.version}: newer are {', '.join(map(str, newer))}"
