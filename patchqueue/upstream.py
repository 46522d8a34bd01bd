"""A patch as a branch on its upstream's main line, ready for a person to send."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchqueue import git, pick
from patchqueue.apply import apply
from patchqueue.depends import dependencies
from patchqueue.errors import QueueError
from patchqueue.hooks import run_hooks
from patchqueue.layout import Layout
from patchqueue.patch import Patch
from patchqueue.pins import Tree
from patchqueue.pull_request import Facts, description, message
from patchqueue.status import guards, lines
from patchqueue.table import table
from patchqueue.trial import run_tests
from patchqueue.upstream_rules import missing
from patchqueue.worktree import BASE, WorkTree

_MAIN = {"lmcache": "dev", "vllm": "main"}
_HEAD = ("patch", "source", "tests", "docs", "upstream", "depends on", "ready")


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    name: str
    clone: Path | None
    reviewer: str | None
    tests: bool


@dataclass(frozen=True)
class _Series:
    """The series of one tree, as patches and as commits, in order."""

    tree: WorkTree
    patches: dict[str, Patch]
    commits: dict[str, str]

    @classmethod
    def of(cls, tree: WorkTree) -> "_Series":
        patches = tree.stack()
        ids = git.text(tree.path, "rev-list", "--reverse", f"{BASE}..HEAD").split()
        return cls(tree, patches, dict(zip(patches, ids, strict=True)))

    def needs(self, name: str) -> list[str]:
        return dependencies(self.tree.path, self.commits, self.patches, name)


def overview(layout: Layout) -> str:
    """A table of all patches: size, status, what they depend on, and what is missing."""
    rows = []
    for series in map(_Series.of, apply(layout)):
        needed: dict[str, list[str]] = {}
        for name, patch in series.patches.items():
            size, needs = lines(patch), series.needs(name)
            needed[name] = needs
            faults = missing(series.tree.pin.name, patch, series.tree.path)
            ready = "; ".join(faults) or ("after those" if needs else "ready")
            counts = (str(size.source), str(size.tests), str(size.docs))
            status = patch.trailer("Upstream-Status") or ""
            entry = f"{series.tree.pin.name}/{name}"
            rows.append((entry, *counts, status, ", ".join(_nearest(needs, needed)) or "-", ready))
    return table(_HEAD, rows)


def _nearest(needs: Sequence[str], needed: Mapping[str, Sequence[str]]) -> list[str]:
    """Those that no other of them needs: they bring the rest along."""
    return [name for name in needs if not any(name in needed[other] for other in needs)]


def prepare(layout: Layout, wish: Wish) -> str:
    """Make the branch, run upstream's checks and the tests, and write the description.

    Returns:
        What was made, what is missing, and what a person types next.

    Raises:
        QueueError: there is no such patch, or it does not merge with the main line.
    """
    series = _find(layout, wish.name)
    name = wish.name.rpartition("/")[2].removesuffix(".patch")
    clone = wish.clone.resolve() if wish.clone else _from_sdist(layout, series.tree)
    main, needs = _main_line(clone, series.tree.pin), series.needs(name)
    branch = f"bounded-restore/{name}"
    _check_free(clone, main, branch)
    head = _branch(series, clone, main, branch, [*needs, name])
    patch, tree = series.patches[name], series.tree.pin.name
    checked = run_hooks(clone, f"{head}^", head, layout.cache / "mypy" / tree, layout.cache)
    tests = _tests(clone, head, tree, guards(patch)) if wish.tests else None
    facts = Facts(
        tests or "not run",
        "all passed" if checked else "some object",
        tuple(series.patches[other].subject for other in needs),
        wish.reviewer,
    )
    folder = layout.root / "work" / "upstream" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        git.checkout(clone, head, Path(scratch, "tree")) as copy,
    ):
        text, faults = description(tree, patch, copy, facts), missing(tree, patch, copy)
    (folder / "title.txt").write_text(f"{patch.subject}\n", encoding="utf-8")
    (folder / "description.md").write_text(text, encoding="utf-8")
    faults += [] if checked else ["pre-commit objects (above)"]
    faults += [] if tests is None or "\n$ failed" not in tests else ["its tests fail there"]
    faults += [f"send first: {', '.join(needs)}"] if needs else []
    return _told(layout, clone, branch, folder, [*faults, *_by_hand(wish)])


def _find(layout: Layout, name: str) -> _Series:
    wanted = name.removeprefix("patches/").removesuffix(".patch")
    found = [
        series
        for series in map(_Series.of, apply(layout))
        if wanted
        in {n for patch in series.patches for n in (patch, f"{series.tree.pin.name}/{patch}")}
    ]
    if len(found) != 1:
        raise QueueError(f"{len(found)} patches are named '{name}'; `nox -s status` lists them")
    return found[0]


def _from_sdist(layout: Layout, tree: WorkTree) -> Path:
    """A repository whose main line is the pinned release."""
    clone = layout.root / "work" / "upstream" / "clones" / tree.pin.name
    if not (clone / ".git").is_dir():
        clone.mkdir(parents=True, exist_ok=True)
        git.output(clone, "init", "--quiet")
    goal = f"+{BASE}:refs/heads/{_MAIN[tree.pin.name]}"
    git.output(clone, "fetch", "--quiet", "--update-head-ok", str(tree.path), goal)
    return clone


def _main_line(clone: Path, pin: Tree) -> str:
    if not clone.is_dir():
        raise QueueError(f"there is no folder {clone}; `git clone {pin.url} {clone}` makes it")
    name = _MAIN[pin.name]
    refs = (f"upstream/{name}", f"origin/{name}", name)
    found = [pick.resolve(clone, f"{ref}^{{commit}}") for ref in refs]
    main = next(filter(None, found), None)
    if main is None:
        raise QueueError(
            f"{clone} has no branch {name}, which is {pin.name}'s main line; fetch it there"
        )
    if not pick.resolve(clone, f"{main}:{pin.name}/__init__.py"):
        raise QueueError(f"{clone} is no clone of {pin.name} ({pin.url}); name one with --clone")
    return main


def _check_free(clone: Path, main: str, branch: str) -> None:
    """Refuse to replace what a person has made of an earlier branch, or has checked out."""
    ref = f"refs/heads/{branch}"
    if not pick.resolve(clone, ref):
        return
    if folder := git.text(clone, "for-each-ref", "--format=%(worktreepath)", ref):
        raise QueueError(
            f"the branch {branch} is checked out in {folder}; `git -C {folder} switch --detach`, "
            "then run this again"
        )
    committers = git.text(clone, "log", "--format=%ce", f"{main}..{ref}").splitlines()
    if set(committers) - {git.EMAIL}:
        raise QueueError(
            f"the branch {branch} in {clone} holds commits that a person has made. Keep them: "
            f"`git -C {clone} branch --move {branch} NAME`; or drop them: `git -C {clone} branch "
            f"--delete --force {branch}`. Then run this again"
        )


def _branch(series: _Series, clone: Path, main: str, branch: str, names: Sequence[str]) -> str:
    """Put the patches on the main line, each with upstream's kind of message."""
    git.output(clone, "fetch", "--quiet", str(series.tree.path), "HEAD")  # for three-way merges
    with (
        tempfile.TemporaryDirectory() as folder,
        git.checkout(clone, main, Path(folder, "tree")) as copy,
    ):
        for name in names:
            _pick(copy, series.commits[name], name)
            text = message(series.patches[name])
            amend = ["commit", "--quiet", "--amend", "--cleanup=whitespace", "--file=-"]
            git.output(copy, *amend, stdin=text.encode())
        head = git.text(copy, "rev-parse", "HEAD")
    git.output(clone, "branch", "--force", branch, head)
    return head


def _pick(copy: Path, commit: str, name: str) -> None:
    if not pick.pick(copy, commit):
        files = ", ".join(pick.unmerged(copy))
        raise QueueError(
            f"{name} conflicts with the main line in {files}. Rebase the queue onto the newest "
            "release first (`nox -s pin -- --check`, docs/rebase.md), or name a clone at the "
            "pinned release"
        )
    if pick.picking(copy):
        raise QueueError(f"the main line has all of {name} already; drop it from the queue")


def _tests(clone: Path, head: str, tree: str, tests: Sequence[str]) -> str:
    trial = run_tests(clone, head, tree, tests)
    result = trial.summary if trial.passed else f"{trial.output}\n$ failed"
    return f"$ pytest {' '.join(tests)}\n{result}"


def _by_hand(wish: Wish) -> list[str]:
    """What no program may do for a person."""
    named = [] if wish.reviewer else ["the name of the person who reviewed every line (--reviewer)"]
    run = [] if wish.tests else ["the tests' output (leave --no-tests out)"]
    return [*run, *named, "Signed-off-by: of the person who sends it"]


def _told(layout: Layout, clone: Path, branch: str, folder: Path, faults: Sequence[str]) -> str:
    return "\n".join(
        [
            f"branch {branch} in {clone}",
            f"title and description in {folder.relative_to(layout.root)}",
            "missing before it can be sent:",
            *[f"  - {fault}" for fault in faults],
            "Nothing was sent. When you have read every line:",
            f"  cd {clone} && git switch {branch}",
            "  git commit --amend --reset-author --signoff --no-edit",
            "  git push <your fork> HEAD, and open the pull request with that title and text",
        ]
    )
