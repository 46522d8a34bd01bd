"""Which earlier patches a patch needs."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchqueue import git
from patchqueue.patch import Patch
from patchqueue.status import sections
from patchqueue.worktree import BASE

_NEW_NAME = re.compile(
    r"^\+\s*(?:(?:async )?(?:def|class) (\w+)|(?:self\.)?(\w+)\s*(?::|=(?!=)))", re.MULTILINE
)
_SHORTEST = 8  # of names that say anything


def dependencies(
    repository: Path, commits: Mapping[str, str], patches: Mapping[str, Patch], name: str
) -> list[str]:
    """The patches below `name` that its diff, or a name in its source, cannot do without.

    Args:
        repository: a work tree of the whole series.
        commits: the commit of every patch, in order.
        patches: every patch, in order.
        name: the patch that is asked about.
    """
    names = list(commits)
    below = names[: names.index(name)]
    needed = _by_names(repository, patches, below, name)
    for other in reversed(below):
        if other in needed:
            continue
        rest = [kept for kept in below if kept != other]
        if _applies(repository, [commits[kept] for kept in rest], commits[name]):
            below = rest
        else:
            needed.append(other)
    return [other for other in names if other in needed]


def _by_names(
    repository: Path, patches: Mapping[str, Patch], below: Sequence[str], name: str
) -> list[str]:
    """Those that define what the source of the patch uses, and upstream does not know."""
    used = set(re.findall(r"\w+", _added(patches[name])))
    found = []
    for other in below:
        defined = {a or b for a, b in _NEW_NAME.findall(_added(patches[other]))}
        shared = {word for word in defined & used if len(word) >= _SHORTEST}
        if any(not _known(repository, word) for word in shared):
            found.append(other)
    return found


def _added(patch: Patch) -> str:
    """The lines that the patch adds to the source, not to tests and documentation."""
    source = [text for file, text in sections(patch) if not file.startswith(("tests/", "docs/"))]
    return "\n".join(re.findall(r"^\+(?!\+\+ ).*$", "\n".join(source), re.MULTILINE))


def _known(repository: Path, word: str) -> bool:
    search = ["grep", "--quiet", "--word-regexp", "--fixed-strings", word, BASE]
    return not git.run(repository, *search).returncode


def _applies(repository: Path, below: Sequence[str], commit: str) -> bool:
    """Whether a patch still merges on top of the base and `below`, in an index of its own."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index"}
        git.output(repository, "read-tree", BASE, extra_env=env)
        for patch in [*below, commit]:
            diff = git.output(repository, "diff-tree", "-p", "--full-index", "--binary", patch)
            apply = ["apply", "--cached", "--3way", "--whitespace=nowarn"]
            if git.run(repository, *apply, stdin=diff, extra_env=env).returncode:
                return False
    return True
