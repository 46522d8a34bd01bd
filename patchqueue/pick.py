"""One patch onto a new base, by git's three-way merge with the old one."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.progress import CLEAN, CONTEXT, OFFSETS, Clash

_PICK = "-c merge.conflictStyle=diff3 -c rerere.enabled=false cherry-pick".split()
_RECALL = "-c rerere.enabled=true -c rerere.autoUpdate=false rerere".split()
_DIFF = "diff-tree --patch --no-commit-id --no-renames --no-color --no-ext-diff".split()
_HUNK = re.compile(
    r"^<{7} .*?\n(?P<ours>.*?)^\|{7} .*?\n(?P<base>.*?)^={7}\n(?P<theirs>.*?)^>{7} .*?$",
    re.MULTILINE | re.DOTALL,
)
_SIDES = {
    "DD": "deleted on both sides",
    "AU": "added upstream under this name",
    "UD": "changed upstream, deleted by the patch",
    "UA": "added by the patch under this name",
    "DU": "deleted upstream, changed by the patch",
}


def pick(path: Path, commit: str) -> bool:
    """Bring `commit` onto HEAD; say whether git could merge all of it.

    What an interrupted run left behind is put on git's stash first.

    Raises:
        QueueError: git failed for another reason than a conflict.
    """
    if git.output(path, "status", "--porcelain"):
        git.output(path, "add", "--all")
        left = ["stash", "push", "--quiet", "--include-untracked", "-m", "left by an interruption"]
        git.output(path, *left)
    done = git.run(path, *_PICK, commit)
    if done.returncode and not picking(path):
        raise QueueError(f"git cherry-pick {commit} failed in {path}:\n{done.stderr.decode()}")
    return not unmerged(path)


def picking(path: Path) -> str:
    """The commit whose cherry-pick is half-way, or an empty text."""
    return resolve(path, "CHERRY_PICK_HEAD")


def resolve(path: Path, name: str) -> str:
    """The commit id behind a name, empty where there is none."""
    return git.run(path, "rev-parse", "--quiet", "--verify", name).stdout.decode().strip()


def unmerged(path: Path) -> dict[str, str]:
    """The files that git could not merge, with the two letters of `git status`."""
    lines = git.output(path, "status", "--porcelain", "-z").decode(errors="replace").split("\0")
    return {
        line[3:]: line[:2]
        for line in lines
        if line[:2] in ("DD", "AU", "UD", "UA", "DU", "AA", "UU")
    }


def clashes(path: Path) -> list[Clash]:
    """What the unmerged files disagree on."""
    found = []
    for file, letters in unmerged(path).items():
        if letters in _SIDES:
            found.append(Clash(file, None, _SIDES[letters]))
            continue
        text = (path / file).read_text(encoding="utf-8", errors="replace")
        found += [
            Clash(file, text.count("\n", 0, hunk.start()) + 1, hunk[0])
            for hunk in _HUNK.finditer(text)
        ] or [Clash(file, None, "a binary file, or one without conflict markers")]
    return found


def remember_in(path: Path, folder: Path) -> None:
    """Let git remember in `folder` how conflicts are resolved, beyond this work tree."""
    folder.mkdir(parents=True, exist_ok=True)
    link = path / ".git" / "rr-cache"
    if not link.is_symlink():
        link.symlink_to(folder)


def recall(path: Path, files: Iterable[str]) -> list[str]:
    """Resolve what is remembered; say which of `files` are whole now.

    They stay unmerged: a person looks at them and adds them.
    """
    git.output(path, *_RECALL)
    return [
        file
        for file in dict.fromkeys(files)
        if not _HUNK.search((path / file).read_text(encoding="utf-8", errors="replace"))
    ]


def finish(path: Path, commit: str) -> bool:
    """Commit what is staged under the patch's message; False where nothing is left of it.

    Raises:
        QueueError: something is not resolved, or not staged.
    """
    if files := unmerged(path):
        raise QueueError(f"not resolved yet: {', '.join(files)}; edit and `git add` (or rm) them")
    status = git.output(path, "status", "--porcelain").decode().splitlines()
    if loose := [line[3:] for line in status if line[1] != " "]:
        raise QueueError(f"not staged: {', '.join(loose)}; `git add` or restore them")
    staged = changed(path, "--cached", "HEAD")
    if marks := markers(path, staged, "--cached"):
        raise QueueError(f"conflict markers are left in:\n{marks}")
    if not staged:
        return False
    git.output(path, "commit", "--quiet", "--reuse-message", commit)
    return True


def drop_conflict_notes(path: Path) -> None:
    """Cut what git adds to the message of a pick that a human has committed."""
    message, note, _ = git.text(path, "log", "-1", "--format=%B").partition("\n# Conflicts:\n")
    if note:
        amend = ["commit", "--quiet", "--amend", "--allow-empty", "--cleanup=whitespace"]
        git.output(path, *amend, "--file=-", stdin=message.encode())


def changed(path: Path, *between: str) -> list[str]:
    """The files that differ, between two commits or, with "--cached", from what is staged."""
    diff = ["diff", "--no-renames", "--name-only", "-z", *between]
    return git.output(path, *diff).decode().split("\0")[:-1]


def markers(path: Path, files: Sequence[str], where: str) -> str:
    """Where files, in a commit or "--cached", still hold git's conflict markers.

    "=======" alone may be a heading.
    """
    search = ["grep", "-n", "-E", "-e", r"^(<{7}|\|{7}|>{7}) ", where, "--", *files]
    return git.run(path, *search).stdout.decode(errors="replace").strip() if files else ""


def give_up(path: Path) -> None:
    """Leave the patch out whose cherry-pick is half-way."""
    git.output(path, "cherry-pick", "--skip")


def compare(path: Path, old: str, new: str) -> str:
    """How a merged commit differs from the patch it was."""
    before, after = (_hunks(git.output(path, *_DIFF, commit)) for commit in (old, new))
    if before == after:
        return CLEAN
    anywhere = re.compile(rb"^@@ .*$", re.MULTILINE)
    same = anywhere.sub(b"@@", before) == anywhere.sub(b"@@", after)
    return OFFSETS if same else CONTEXT


def _hunks(diff: bytes) -> bytes:
    """A diff without blob ids and without the headings of its hunks."""
    diff = re.sub(rb"^index .*\n", b"", diff, flags=re.MULTILINE)
    return re.sub(rb"^(@@ .+? @@).*$", rb"\1", diff, flags=re.MULTILINE)
