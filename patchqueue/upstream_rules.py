"""What the two upstreams ask of a pull request, as far as a program can tell."""

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from patchqueue.patch import Patch
from patchqueue.status import guards, lines, sections

_BUGFIX_LINES = 250  # vLLM's pr-checklist: above, a bug fix needs a special justification
_RFC_LINES = 500  # vLLM's contributing guide: above, an RFC comes first
_FLAG = re.compile(r"^\+.*(?:add_argument\(|\bLMCACHE_[A-Z0-9_]+|\bVLLM_[A-Z0-9_]+)", re.MULTILINE)


def missing(tree: str, patch: Patch, clone: Path) -> list[str]:
    """What the patch lacks before a person could send it.

    Args:
        tree: "lmcache" or "vllm".
        patch: the patch.
        clone: a checkout of the upstream, for its continuous integration.
    """
    rules = _VLLM if tree == "vllm" else _LMCACHE
    return [fault for rule in (_status, _docs, *rules) if (fault := rule(patch, clone))]


def _status(patch: Patch, _: Path) -> str | None:
    status = patch.trailer("Upstream-Status") or ""
    return None if status == "Pending" else f"Upstream-Status is {status}"


def _docs(patch: Patch, _: Path) -> str | None:
    source = "".join(text for file, text in sections(patch) if not file.startswith("tests/"))
    if not _FLAG.search(source) or any(file.startswith("docs/") for file in patch.touched()):
        return None
    return "adds an option or a variable, and no documentation of it"


def _size(patch: Patch, _: Path) -> str | None:
    source = lines(patch).source
    if "[Bugfix]" in patch.subject and source > _BUGFIX_LINES:
        return f"{source} lines of source; {_BUGFIX_LINES} at most for a bug fix"
    return f"{source} lines of source; an RFC first" if source > _RFC_LINES else None


def _wired(patch: Patch, clone: Path) -> str | None:
    targets = pytest_targets(clone)
    if not targets:
        return "its test wiring cannot be checked: no .buildkite/test_areas in the clone"
    loose = [name for name in guards(patch) if not any(_runs(t, name) for t in targets)]
    return f"no step of .buildkite runs {', '.join(loose)}" if loose else None


def pytest_targets(clone: Path) -> set[str]:
    """The paths that vLLM's CI hands to pytest, relative to `tests/`."""
    found: set[str] = set()
    for file in sorted((clone / ".buildkite" / "test_areas").glob("*.yaml")):
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        for step in document.get("steps", []):
            found |= _targets(step)
    return found


def _targets(step: dict[str, Any]) -> set[str]:
    words = [word for line in step.get("commands", []) for word in _pytest_words(str(line))]
    return {word.removeprefix("tests/").rstrip("/") for word in words if "/" in word}


def _pytest_words(line: str) -> list[str]:
    _, found, arguments = line.partition("pytest ")
    words = arguments.split()
    return [word for word in words if not word.startswith("-") and "=" not in word] if found else []


def _runs(target: str, test: str) -> bool:
    name = test.removeprefix("tests/")
    return fnmatch(name, target) or PurePosixPath(name).is_relative_to(target)


def _ignored(patch: Patch, clone: Path) -> str | None:
    workflow = clone / ".github" / "workflows" / "test.yml"
    if not workflow.is_file():
        return "its test wiring cannot be checked: no .github/workflows/test.yml in the clone"
    text = workflow.read_text(encoding="utf-8")
    ignored = [path.rstrip("/") for path in re.findall(r"--ignore=(\S+)", text)]
    loose = [
        name
        for name in guards(patch)
        if not name.startswith("tests/")
        or any(PurePosixPath(name).is_relative_to(path) for path in ignored)
    ]
    return f"its CI does not run {', '.join(loose)}" if loose else None


def _licence(patch: Patch, _: Path) -> str | None:
    bare = [
        file
        for file, text in sections(patch)
        if "\nnew file mode" in text
        and file.endswith(".py")
        and "\n+# SPDX-License-Identifier: Apache-2.0" not in text
    ]
    return f"no SPDX line in {', '.join(bare)}" if bare else None


_Rule = Callable[[Patch, Path], str | None]
_VLLM: tuple[_Rule, ...] = (_size, _wired, _licence)
_LMCACHE: tuple[_Rule, ...] = (_ignored, _licence)
