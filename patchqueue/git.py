"""git and StGit, isolated from the machine's and the user's configuration."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchqueue.errors import QueueError

AUTHOR = "bounded-restore"
EMAIL = "bounded-restore@localhost"
BASE_DATE = "2000-01-01T00:00:00+0000"

# The same bytes on every machine: no locale, time zone, attributes, hooks or
# line-ending rules but git's own defaults and those of the tree itself.
_CONFIG = {
    "core.autocrlf": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "true",
    "commit.gpgSign": "false",
    "diff.algorithm": "myers",
    "gc.auto": "0",
    "init.defaultBranch": "main",
    "safe.directory": "*",
}


def environment() -> dict[str, str]:
    """The environment for git: fixed locale, time zone, identity and configuration."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "LC_"))}
    env.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_COUNT=str(len(_CONFIG)),
        GIT_AUTHOR_NAME=AUTHOR,
        GIT_AUTHOR_EMAIL=EMAIL,
        GIT_COMMITTER_NAME=AUTHOR,
        GIT_COMMITTER_EMAIL=EMAIL,
        GIT_TERMINAL_PROMPT="0",
        LANG="C",
        LC_ALL="C",
        TZ="UTC",
    )
    for number, (key, value) in enumerate(_CONFIG.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def run(
    tree: Path,
    *args: str,
    stdin: bytes | None = None,
    extra_env: dict[str, str] | None = None,
    program: str = "git",
) -> subprocess.CompletedProcess[bytes]:
    """Run git (or `program`) in `tree`; the caller looks at the return code."""
    if shutil.which(program) is None:
        raise QueueError(f"{program} is not installed; install it and run this again")
    return subprocess.run(
        [program, *args],
        cwd=tree,
        env=environment() | (extra_env or {}),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        check=False,
    )


def output(
    tree: Path,
    *args: str,
    stdin: bytes | None = None,
    extra_env: dict[str, str] | None = None,
    program: str = "git",
) -> bytes:
    """What git printed.

    Raises:
        QueueError: git failed; the message carries the command and its last words.
    """
    done = run(tree, *args, stdin=stdin, extra_env=extra_env, program=program)
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise QueueError(f"{program} {' '.join(args)} failed in {tree}:\n{words}")
    return done.stdout


def text(tree: Path, *args: str, program: str = "git") -> str:
    """What git printed, decoded and stripped."""
    return output(tree, *args, program=program).decode().strip()


def has_stgit() -> bool:
    """Whether StGit is there to hand a stack to."""
    return shutil.which("stg") is not None


@contextmanager
def checkout(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out in a new folder, for a while."""
    output(repository, "worktree", "prune")
    output(repository, "worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        output(repository, "worktree", "remove", "--force", str(folder))
