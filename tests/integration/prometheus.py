"""Read the text format of a Prometheus /metrics page."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of a /metrics page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """A /metrics page."""

    samples: tuple[Sample, ...]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of that name with at least those labels.

        A counter may be written with or without its suffix _total. A counter
        that nothing has counted yet is absent from the page and reads 0.
        """
        return sum(sample.value for sample in self._matching(name, labels))

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        for sample in self.samples:
            same_name = sample.name in (name, f"{name}_total")
            if same_name and labels.items() <= sample.labels.items():
                yield sample


def parse_metrics(page: str) -> Metrics:
    """Parse a /metrics page."""
    return Metrics(tuple(_samples(page)))


def _samples(page: str) -> Iterator[Sample]:
    for line in page.splitlines():
        if match := _SAMPLE.match(line):
            labels = dict(_LABEL.findall(match["labels"] or ""))
            yield Sample(match["name"], labels, float(match["value"]))
