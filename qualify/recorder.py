"""Keeps the rows of a run as they come, and says how it goes."""

import datetime
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from qualify.checks import RUN, Rejection, rejections
from qualify.evidence import Evidence, NotRun, Row, Value
from qualify.observation import Observation


def now() -> str:
    """The time, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class Recorder:
    """Writes the evidence after each row, so that an interrupted run keeps its rows."""

    def __init__(
        self,
        evidence: Evidence,
        path: Path,
        say: Callable[[str], None],
        only: Sequence[str] | None = None,
    ) -> None:
        """Write the file for the first time; say() gets a line at a time.

        only: the numbers of the experiments that are wanted, if not all are.
        """
        self.evidence = evidence
        self._only = only
        self._path = path
        self._say = say
        self._began = time.monotonic()
        self._experiment = ""
        evidence.load.append(round(os.getloadavg()[0], 1))
        evidence.write(path)

    def say(self, line: str) -> None:
        """Show a line of progress."""
        self._say(f"[{time.monotonic() - self._began:5.0f} s] {line}")

    def wants(self, *experiments: str) -> bool:
        """Whether any of these experiments is to be run."""
        return self._only is None or any(name[0] in self._only for name in experiments)

    @contextmanager
    def experiment(self, name: str) -> Iterator[None]:
        """Record what goes wrong in the with block as a rejected row; go on after it."""
        self._experiment = name
        self.say(f"{name}:")
        try:
            yield
        except Exception as error:
            self.say(f"{name} broke off:\n{error}")
            self._keep(Row(name, "broke off", "", {}, {}, rejections=(_broken(error),)))

    def add(
        self,
        name: str,
        source: str,
        observations: Sequence[Observation] = (),
        *,
        setup: Mapping[str, Value],
        figures: Mapping[str, Value],
        series: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Row:
        """Judge a row and keep it."""
        faults = tuple(dict.fromkeys(each for seen in observations for each in rejections(seen)))
        row = Row(
            self._experiment,
            name,
            source,
            setup,
            figures,
            series or {},
            tuple(observations),
            faults,
        )
        self._keep(row)
        return row

    def leave_out(self, what: str, reason: str) -> None:
        """Record that something was not run."""
        self.evidence.not_run.append(NotRun(what, reason))
        self.evidence.write(self._path)
        self.say(f"not run: {what}: {reason}")

    def finish(self) -> None:
        """The run is complete."""
        self.evidence.complete = True
        self.evidence.finished = now()
        self.evidence.load.append(round(os.getloadavg()[0], 1))
        self.evidence.write(self._path)

    def _keep(self, row: Row) -> None:
        self.evidence.rows.append(row)
        self.evidence.write(self._path)
        for line in verdict(row):
            self.say(line)


def _broken(error: Exception) -> Rejection:
    """An error in one line, without the folders of this machine."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    return Rejection(RUN, re.sub(r"/(\S+/)+", "", first))


def verdict(row: Row) -> Iterator[str]:
    """A row in words: its figures, or why it does not count."""
    if row.accepted:
        figures = ", ".join(f"{name} {_short(value)}" for name, value in row.figures.items())
        yield f"  {row.name}: accepted; {figures}"
    for each in row.rejections:
        yield f"  {row.name}: REJECTED by {each.check}: {each.reason}"


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
