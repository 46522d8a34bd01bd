"""Which earlier patches a patch needs."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from patchqueue import git
from patchqueue.patch import Patch
from patchqueue.status import sections
from patchqueue.worktree import BASE

_NEW_NAME = re.compile(
    r"^\+\s*(?:(?:async )?(?:def|class) (\w+)|(?:self\.)?(\w+)\s*(?::|=(?!=)))", re.MULTILINE
)
# What a test file offers to others; tests themselves and what is local to one stay out.
_HELPER = re.compile(r"^\+(?:async )?(?:def|class) (?!test_|Test)(\w+)", re.MULTILINE)
_SHORTEST = 8  # of names that say anything


def dependencies(
    repository: Path, commits: Mapping[str, str], patches: Mapping[str, Patch], name: str
) -> list[str]:
    """The patches below `name` that its diff, or a name in it, cannot do without.

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
    """Those that define what the patch or its tests use, and upstream does not know."""
    used = set(re.findall(r"\w+", _added(patches[name], _is_source)))
    tests = _added(patches[name], _is_test)
    tested = set(re.findall(r"\w+", tests)) - set(_HELPER.findall(tests))
    found = []
    for other in below:
        defined = {a or b for a, b in _NEW_NAME.findall(_added(patches[other], _is_source))}
        helpers = set(_HELPER.findall(_added(patches[other], _is_test)))
        shared = {w for w in (defined & used) | (helpers & tested) if len(w) >= _SHORTEST}
        if any(not _known(repository, word) for word in shared):
            found.append(other)
    return found


def _added(patch: Patch, wanted: Callable[[str], bool]) -> str:
    """The lines that the patch adds to the wanted files."""
    texts = [text for file, text in sections(patch) if wanted(file)]
    return "\n".join(re.findall(r"^\+(?!\+\+ ).*$", "\n".join(texts), re.MULTILINE))


def _is_source(file: str) -> bool:
    return not file.startswith(("tests/", "docs/"))


def _is_test(file: str) -> bool:
    return file.startswith("tests/")


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
