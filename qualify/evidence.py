"""The evidence of a run: one JSON file, whole after every row."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qualify.checks import Rejection
from qualify.observation import Observation

SCHEMA = 1

Value = str | int | float | bool | None


class EvidenceError(Exception):
    """An evidence file cannot be used."""


@dataclass(frozen=True)
class Subject:
    """What was qualified.

    Attributes:
        versions: the installed distributions.
        pins: the pinned upstream releases, by tree.
        queue: sha256 over pins.lock, series and every patch.
        commit: of this repository; empty outside git.
        changed: whether the checkout differed from that commit.
    """

    versions: dict[str, str]
    pins: dict[str, str]
    queue: str
    commit: str
    changed: bool


@dataclass(frozen=True)
class Machine:
    """Where it ran."""

    description: str
    architecture: str
    system: str
    python: str
    memory_bytes: int


@dataclass(frozen=True)
class Row:
    """One line of an experiment.

    Attributes:
        experiment: which one.
        name: what tells the row from the others.
        source: what restored: a real engine, a client without a model, plain reads.
        setup: what was chosen. figures: what was measured.
        series: measured repeatedly, in order.
        observations: raw, every one that the figures rest on.
    """

    experiment: str
    name: str
    source: str
    setup: Mapping[str, Value]
    figures: Mapping[str, Value]
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    observations: tuple[Observation, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.rejections


@dataclass(frozen=True)
class NotRun:
    """What was left out, and why."""

    what: str
    reason: str


@dataclass
class Evidence:
    """All of it. `load` are the machine's load averages at start and end."""

    profile: str
    started: str
    subject: Subject
    machine: Machine
    schema: int = SCHEMA
    complete: bool = False
    finished: str = ""
    load: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    @property
    def rejected(self) -> list[Row]:
        """The rows that do not count."""
        return [row for row in self.rows if not row.accepted]

    def of(self, experiment: str) -> list[Row]:
        """The rows of an experiment, accepted or not."""
        return [row for row in self.rows if row.experiment == experiment]

    def write(self, path: Path) -> None:
        """Replace the file at once."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Evidence":
        """Read the file back.

        Raises:
            EvidenceError: It is missing, damaged, or of another schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise EvidenceError(f"{path} has schema {data['schema']}; this reads {SCHEMA}")
            evidence: Evidence = _built(cls, data)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise EvidenceError(f"{path} is no evidence of a run: {error}") from error
        return evidence


def _built(kind: Any, value: Any) -> Any:
    """Make a value of a type from its JSON."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _built(hints[name], each) for name, each in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return value
    if origin is tuple:
        return tuple(_built(arguments[0], each) for each in value)
    if origin is list:
        return [_built(arguments[0], each) for each in value]
    if origin is not None:
        return {name: _built(arguments[1], each) for name, each in value.items()}
    return value
