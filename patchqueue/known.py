"""Upstream tests that fail, skip or waver on the unpatched pins.

``known.toml`` lists them with their causes. A run is compared with the list in
both directions: a failure or a skip that is not listed is an error, and so is
an entry whose tests pass, or do not exist.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchqueue.errors import QueueError

Outcomes = dict[str, dict[str, Any]]

NAMES_SHOWN = 20


@dataclass(frozen=True)
class Skip:
    """Tests that skip, ``count`` of them below the node id ``key``."""

    key: str
    count: int
    reason: str
    cause: str
    patch: str | None


@dataclass(frozen=True)
class Failure:
    """A test, or a group of tests, that fails."""

    key: str
    cause: str


@dataclass(frozen=True)
class Flaky:
    """Tests that may fail for reasons of their own, rerun ``reruns`` times."""

    key: str
    reruns: int
    cause: str


@dataclass
class Known:
    """The entries of ``known.toml`` that concern one run."""

    skips: list[Skip] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    flaky: list[Flaky] = field(default_factory=list)

    def within(self, selected: Callable[[str], bool]) -> "Known":
        """Return the entries whose test file is selected."""
        return Known(
            [e for e in self.skips if selected(file_of(e.key))],
            [e for e in self.failures if selected(file_of(e.key))],
            [e for e in self.flaky if selected(file_of(e.key))],
        )

    def rules(self, markers: list[str]) -> dict[str, Any]:
        """Return what the pytest plugin has to know."""
        return {
            "markers": markers,
            "fail": {entry.key: entry.cause for entry in self.failures},
            "flaky": {entry.key: entry.reruns for entry in self.flaky},
        }


def file_of(nodeid: str) -> str:
    """Return the test file of a node id."""
    return nodeid.partition("::")[0]


def matches(key: str, nodeid: str) -> bool:
    """Tell whether ``key`` names ``nodeid`` or something that contains it."""
    return nodeid == key or nodeid.startswith((f"{key}::", f"{key}[", f"{key}/"))


def _read_entry(entry: dict[str, Any], known: Known) -> None:
    cause = entry["cause"]
    match entry["outcome"]:
        case "skip":
            known.skips += [
                Skip(key, count, entry["reason"], cause, entry.get("patch"))
                for key, count in entry["tests"].items()
            ]
        case "fail":
            known.failures += [Failure(key, cause) for key in entry["tests"]]
        case "flaky":
            reruns = entry["reruns"]
            known.flaky += [Flaky(key, reruns, cause) for key in entry["tests"]]
        case other:
            raise QueueError(f"outcome {other!r} is not one of skip, fail, flaky")


def load(path: Path, tree: str) -> Known:
    """Read the entries of one tree.

    Raises:
        QueueError: The file is missing, or an entry lacks a key.

    """
    known = Known()
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["known"]
        for entry in entries:
            if entry["tree"] == tree:
                _read_entry(entry, known)
    except (OSError, tomllib.TOMLDecodeError, QueueError) as error:
        raise QueueError(f"{path}: {error}") from error
    except KeyError as error:
        raise QueueError(f"{path}: an entry lacks {error}") from error
    return known


def shorten(names: list[str]) -> list[str]:
    """Return the first names, and how many were left out."""
    hidden = len(names) - NAMES_SHOWN
    return [*names[:NAMES_SHOWN], f"and {hidden} more"] if hidden > 0 else names


def _lines(outcomes: Outcomes, text: str) -> list[str]:
    return [f"{text}: {name}: {o.get('message', '')}" for name, o in outcomes.items()]


def _with_outcome(outcomes: Outcomes, outcome: str) -> Outcomes:
    return {name: o for name, o in outcomes.items() if o.get("outcome") == outcome}


def check_failures(outcomes: Outcomes) -> list[str]:
    """Return a line for each test that failed though it is not listed.

    A listed failure has become a "known failure" in the plugin, and one that
    passed against its entry a failure that says so.
    """
    return _lines(_with_outcome(outcomes, "failed"), "failed")


def check_skips(skips: list[Skip], outcomes: Outcomes) -> list[str]:
    """Compare the skipped tests with the listed ones, both ways."""
    left = _with_outcome(outcomes, "skipped")
    problems = []
    for entry in skips:
        found = [
            name
            for name, outcome in left.items()
            if matches(entry.key, name) and entry.reason in outcome["message"]
        ]
        if len(found) != entry.count:
            problems.append(
                f"known.toml lists {entry.count} skipped, found {len(found)}: "
                f"{entry.key} ({entry.reason})"
            )
        for name in found:
            del left[name]
    return problems + _lines(left, "newly skipped")


def check_existence(known: Known, outcomes: Outcomes) -> list[str]:
    """Return a line for each listed test that the run did not meet."""
    keys = [e.key for e in known.failures] + [e.key for e in known.flaky]
    return [
        f"known.toml lists a test that does not exist: {key}"
        for key in keys
        if not any(matches(key, name) for name in outcomes)
    ]


def check_count(outcomes: Outcomes, minimum: int) -> list[str]:
    """Return a line when fewer tests ran than the unpatched pins have."""
    if len(outcomes) >= minimum:
        return []
    return [f"only {len(outcomes)} tests were found, the pins have {minimum}"]


def check(known: Known, tests: Outcomes, modules: Outcomes, minimum: int) -> list[str]:
    """Return one line for each way in which a run differs from the list."""
    if unreadable := check_failures(modules):
        return unreadable
    everything = {**tests, **modules}
    return [
        *check_count(tests, minimum),
        *check_failures(everything),
        *check_skips(known.skips, everything),
        *check_existence(known, everything),
    ]


def rerun_tests(outcomes: Outcomes) -> list[str]:
    """Return the tests that needed a rerun."""
    return [name for name, outcome in outcomes.items() if outcome.get("reruns")]
