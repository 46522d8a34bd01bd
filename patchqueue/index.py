"""Finding files on the package index that pip is configured for.

This calls pip's own finder and session, as pip-tools does, so that indexes,
mirrors, find-links, proxies, certificates and credentials are those of `pip
install`. pip has no public interface for it; `pyproject.toml` pins the pip
release that this was tested with.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pip._internal.commands import create_command
from pip._internal.models.format_control import FormatControl
from pip._internal.models.link import Link
from pip._internal.models.target_python import TargetPython


@dataclass(frozen=True)
class Index:
    """pip's session and the finder factory behind it."""

    session: Any
    _command: Any
    _options: Any

    def find(self, project: str, version: str, target: TargetPython) -> list[Link]:
        """Links to a release's sdist and to its wheels that suit `target`."""
        candidates = self._candidates(project, target)
        return [found.link for found in candidates if str(found.version) == version]

    def versions(self, project: str) -> list[Version]:
        """The versions that have an sdist and are not yanked, ascending."""
        candidates = self._candidates(project, TargetPython())
        return sorted(
            {
                Version(str(found.version))  # pip's own class, vendored
                for found in candidates
                if not found.link.is_wheel and not found.link.is_yanked
            }
        )

    def _candidates(self, project: str, target: TargetPython) -> list[Any]:
        finder = self._command._build_package_finder(
            self._options, self.session, target_python=target, ignore_requires_python=True
        )
        return list(finder.find_all_candidates(project))

    def locate(self, project: str, version: str, name: str) -> Link | None:
        """The link to one file, or None where the index does not offer it."""
        target = _target(name) if name.endswith(".whl") else TargetPython()
        links = self.find(project, version, target)
        return next((link for link in links if link.filename == name), None)


@contextmanager
def connect() -> Iterator[Index]:
    """Open pip's session with pip's configuration."""
    command = create_command("download")
    with command.main_context():
        options, _ = command.parse_args(["--no-deps"])
        options.format_control = FormatControl(set(), set())  # files are asked for by name
        session = command._build_session(options)  # type: ignore[attr-defined]
        # An index that lacks a project is no news; a missing file is reported by name.
        logging.getLogger("pip").setLevel(logging.ERROR)
        yield Index(session, command, options)


def target(platform: str, python: str) -> TargetPython:
    """CPython `python` (as in "3.11") on one platform tag."""
    major, minor = python.split(".")
    return TargetPython(
        platforms=[platform], py_version_info=(int(major), int(minor)), implementation="cp"
    )


def _target(wheel: str) -> TargetPython:
    """A target that a wheel of this name suits."""
    tag: Tag = next(iter(parse_wheel_filename(wheel)[3]))
    return TargetPython(
        platforms=[tag.platform],
        py_version_info=(3, int(tag.interpreter.removeprefix("cp3"))),
        abis=[tag.abi],
        implementation="cp",
    )
