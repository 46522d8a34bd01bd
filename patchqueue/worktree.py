"""The git work tree of one upstream: a base commit and the series on top of it."""

import hashlib
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.layout import Layout
from patchqueue.patch import Patch, slug
from patchqueue.pins import Tree
from patchqueue.series import Series

BASE = "refs/patchqueue/base"
SAVED = "refs/patchqueue/saved"
_NAMES = "refs/notes/patchqueue"
_DIFF_TREE = (
    "diff-tree --patch --full-index --binary --no-renames --no-color --no-ext-diff "
    "--no-textconv --no-commit-id --unified=3 --inter-hunk-context=0 --diff-algorithm=myers "
    "--indent-heuristic --src-prefix=a/ --dst-prefix=b/ --submodule=short"
).split()


@dataclass(frozen=True)
class WorkTree:
    """The work tree of `pin`, in the checkout that `layout` describes."""

    layout: Layout
    pin: Tree

    @property
    def path(self) -> Path:
        """The folder of the work tree."""
        return self.layout.worktree(self.pin.name)

    @property
    def shown(self) -> str:
        """The folder as a user at the checkout's root would type it."""
        return self.layout.shown(self.path)

    def exists(self) -> bool:
        """Whether there is a repository in the folder."""
        return (self.path / ".git").is_dir()

    # The base commit

    def ensure_base(self, sdist: Path) -> None:
        """Create the repository and the base commit where they are missing.

        Raises:
            QueueError: the unpacked sdist has not the pinned tree id.
        """
        if not self.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            git.output(self.path, "init", "--quiet")
            # `git commit --amend` and `git rebase` carry the patch names along.
            git.output(self.path, "config", "notes.rewriteRef", _NAMES)
        if self.base_tree() != self.pin.tree_id:
            self._import(sdist)

    def base_tree(self) -> str | None:
        """The tree id of the base commit, or None where there is none."""
        return self._resolve(f"{BASE}^{{tree}}") or None

    def _import(self, sdist: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self.path / ".git") as folder:
            found = import_tree(self.path, unpack(sdist, Path(folder)))
        if found != self.pin.tree_id:
            raise QueueError(
                f"{sdist.name} unpacks to the git tree {found}, but pins.lock says "
                f"{self.pin.tree_id}; `nox -s pin` writes new pins"
            )
        date = {"GIT_COMMITTER_DATE": git.BASE_DATE, "GIT_AUTHOR_DATE": git.BASE_DATE}
        message = f"{self.pin.name} {self.pin.version}".encode()
        commit = git.output(self.path, "commit-tree", found, stdin=message, extra_env=date)
        git.output(self.path, "update-ref", BASE, commit.decode().strip())

    # What the tree holds

    def head(self) -> str:
        """The commit id of HEAD, empty where there is none."""
        return (
            git.run(self.path, "rev-parse", "--quiet", "--verify", "HEAD").stdout.decode().strip()
        )

    def dirty(self) -> str:
        """What `git status` lists, empty for a clean tree."""
        return git.output(self.path, "status", "--porcelain").decode().rstrip()

    def in_progress(self) -> str | None:
        """The command that was interrupted half-way, "am" or "rebase"."""
        if (self.path / ".git/rebase-apply/applying").exists():
            return "am"
        halfway = ("rebase-merge", "rebase-apply")
        return "rebase" if any((self.path / ".git" / name).exists() for name in halfway) else None

    def _resolve(self, name: str) -> str:
        done = git.run(self.path, "rev-parse", "--quiet", "--verify", name)
        return done.stdout.decode().strip()

    def stack(self) -> dict[str, Patch]:
        """The commits between the base and HEAD as patches by name, in order.

        Raises:
            QueueError: HEAD does not descend from the base in a straight line, or
                two commits have one name.
        """
        if git.run(self.path, "merge-base", "--is-ancestor", BASE, "HEAD").returncode:
            raise QueueError(
                f"{self.shown}: HEAD does not descend from {self.pin.name} {self.pin.version}; "
                f"rebase it onto {BASE}"
            )
        lines = git.text(self.path, "rev-list", "--reverse", "--parents", f"{BASE}..HEAD")
        commits = [line.split() for line in lines.splitlines()]
        merges = [commit[0] for commit in commits if len(commit) > 2]
        if merges:
            raise QueueError(
                f"{self.shown}: {merges[0]} is a merge; a series has none. "
                f"`git -C {self.shown} rebase {BASE}` makes the stack straight"
            )
        ids = [commit[0] for commit in commits]
        patches = [self._patch(commit) for commit in ids]
        names = self._names(ids, patches)
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise QueueError(
                f"{self.shown}: two commits would both be {min(twice)}.patch; give one of them "
                "another subject (or `stg rename` it)"
            )
        return dict(zip(names, patches, strict=True))

    def saved(self) -> dict[str, Patch]:
        """The patches in `patches/` by name, in the order of `series`."""
        return read_patches(self.layout, self.pin.name)

    def unsaved(self) -> str | None:
        """What is in the work tree and not in `patches/`, in words, or None."""
        if not self.exists():
            filled = self.path.is_dir() and any(self.path.iterdir())
            return "files, and is no git repository" if filled else None
        if not self.head():
            return "files that no commit holds" if self._resolve(SAVED) else None
        if changes := self.dirty():
            return "files that no commit holds:\n" + _first_lines(changes)
        if self.in_progress() == "rebase":
            return "a rebase that is half-way"
        if unapplied := self.stgit_unapplied():
            return f"StGit patches that are not applied: {', '.join(unapplied)}"
        if self._resolve("refs/heads/main") not in ("", self.head()):
            return "a branch main with other commits than those checked out"
        if self._resolve(SAVED) == self.head():
            return None
        if formatted(self.stack()) == formatted(self.saved()):
            return None
        return "commits that are not in patches/, or differ from it"

    def mark_saved(self) -> None:
        """Record that `patches/` holds everything up to HEAD."""
        git.output(self.path, "update-ref", SAVED, "HEAD")
        self.mark_source()

    def mark_source(self) -> None:
        """Record the state of `patches/` that the work tree is made from."""
        self._digest_file.write_text(self.wanted_digest())

    def is_made_from_patches(self) -> bool:
        """Whether `patches/` is as it was when the work tree was made from it, or saved to it."""
        return self._digest_file.is_file() and self._digest_file.read_text() == self.wanted_digest()

    def is_current(self) -> bool:
        """Whether the work tree is exactly what pins and `patches/` ask for."""
        return (
            self.exists()
            and self.is_made_from_patches()
            and not self.in_progress()
            and self._resolve(SAVED) == self.head()
            and not self.dirty()
            and (not git.has_stgit() or self.stgit_names() is not None)
        )

    def wanted_digest(self) -> str:
        """A digest of the pin and of the tree's part of the series."""
        digest = hashlib.sha256(self.pin.tree_id.encode())
        for name in self.saved():
            data = (self.layout.patches / self.pin.name / f"{name}.patch").read_bytes()
            digest.update(f"\n{name} {len(data)}\n".encode() + data)
        return digest.hexdigest()

    @property
    def _digest_file(self) -> Path:
        return self.path / ".git" / "patchqueue-digest"

    def _patch(self, commit: str) -> Patch:
        raw = git.output(
            self.path,
            "log",
            "-1",
            "--encoding=UTF-8",
            "--date=iso",
            "--format=%an <%ae>%n%ad%n%B",
            commit,
        ).decode()
        author, date, message = raw.split("\n", 2)
        subject, _, body = message.strip().partition("\n")
        diff = git.output(self.path, *_DIFF_TREE, commit)
        if not diff:
            raise QueueError(
                f"{self.shown}: the commit '{subject}' changes nothing; drop it with "
                f"`git -C {self.shown} rebase --interactive {BASE}`"
            )
        return Patch(subject, author, date, body.strip("\n"), diff)

    # Names

    def name_commits(self, names: Sequence[str]) -> None:
        """Remember the patch names of the commits on top of the base."""
        commits = git.text(self.path, "rev-list", "--reverse", f"{BASE}..HEAD").split()
        for commit, name in zip(commits, names, strict=True):
            git.output(self.path, "notes", f"--ref={_NAMES}", "add", "--force", "-m", name, commit)

    def _names(self, commits: Sequence[str], patches: Sequence[Patch]) -> list[str]:
        """Names from StGit, else remembered ones, else by subject."""
        stack = self.stgit_names()
        if stack is not None and len(stack) == len(commits):
            return stack
        by_subject = {patch.subject: name for name, patch in self.saved().items()}
        return [
            self._remembered(commit) or by_subject.get(patch.subject) or slug(patch.subject)
            for commit, patch in zip(commits, patches, strict=True)
        ]

    def _remembered(self, commit: str) -> str:
        note = git.run(self.path, "notes", f"--ref={_NAMES}", "show", commit)
        # An amended commit that was squashed from two carries both names; the first stays.
        return note.stdout.decode().split("\n")[0].strip() if not note.returncode else ""

    # StGit

    def stgit_names(self) -> list[str] | None:
        """StGit's applied patches, or None where its stack does not end at HEAD."""
        applied = self._stgit("series", "--applied", "--noprefix")
        if applied is None:
            return None
        names = applied.split()
        top = (self._stgit("id", names[-1]) or "").strip() if names else self._resolve(BASE)
        return names if top == self.head() else None

    def has_stgit_stack(self) -> bool:
        """Whether StGit knows the branch that is checked out."""
        return self._stgit("series") is not None

    def stgit_unapplied(self) -> list[str]:
        """StGit's patches that are not applied."""
        return (self._stgit("series", "--unapplied", "--noprefix") or "").split()

    def _stgit(self, *args: str) -> str | None:
        if not git.has_stgit():
            return None
        done = git.run(self.path, *args, program="stg")
        return done.stdout.decode() if not done.returncode else None


def import_tree(repository: Path, files: Path) -> str:
    """Add a folder's files to `repository` and return their tree id."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_DIR": str(repository / ".git"), "GIT_INDEX_FILE": f"{folder}/index"}
        git.output(files, "--work-tree=.", "add", "--all", "--force", ".", extra_env=env)
        return git.output(files, "write-tree", extra_env=env).decode().strip()


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist and return its one top folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def read_patches(layout: Layout, tree: str) -> dict[str, Patch]:
    """The patches that `series` lists for `tree`, by name, in order.

    Raises:
        QueueError: an entry has no file, a file no entry, or a file is no patch.
    """
    names = Series.read(layout.series).names(tree)
    folder = layout.patches / tree
    unlisted = sorted({path.stem for path in folder.glob("*.patch")} - set(names))
    if unlisted:
        raise QueueError(
            f"patches/{tree}/{unlisted[0]}.patch is in no line of series; add the line "
            f"'{tree}/{unlisted[0]}.patch' where it belongs, or `git rm` the file"
        )
    patches = {}
    for name in names:
        path = folder / f"{name}.patch"
        if not path.is_file():
            raise QueueError(
                f"series lists {tree}/{name}.patch, but there is no such file; "
                f"`git checkout -- patches/{tree}/{name}.patch` brings it back, or remove the line"
            )
        try:
            patches[name] = Patch.parse(path.read_bytes())
        except QueueError as error:
            raise QueueError(
                f"patches/{tree}/{name}.patch: {error}; `git checkout -- "
                f"patches/{tree}/{name}.patch` brings the committed file back"
            ) from error
    return patches


def formatted(patches: dict[str, Patch]) -> dict[str, bytes]:
    """The bytes of every patch file, by name."""
    return {name: patch.format() for name, patch in patches.items()}


def _first_lines(text: str, most: int = 10) -> str:
    lines = text.splitlines()
    more = [f"   ... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([f"   {line}" for line in lines[:most]] + more)
