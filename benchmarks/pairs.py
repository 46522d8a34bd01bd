# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: paired runs that alternate, and a cold page cache."""

import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pairs:
    """The seconds of two things that were measured in turn."""

    first: list[float]
    second: list[float]

    def median_ratio(self) -> float:
        """Return the median over the pairs of first / second."""
        return statistics.median(a / b for a, b in zip(self.first, self.second, strict=True))


def measure_pairs(
    first: Callable[[], float],
    second: Callable[[], float],
    prepare: Callable[[], None],
    rounds: int,
    warm_up: int = 0,
) -> Pairs:
    """Run *rounds* pairs, after *warm_up* that do not count; each run returns its seconds.

    The runs of a pair follow each other directly and swap places from round to
    round, so that drift of a shared machine hits both alike.
    """
    if warm_up:
        measure_pairs(first, second, prepare, warm_up)
    pairs = Pairs([], [])
    sides = [(first, pairs.first), (second, pairs.second)]
    for _ in range(rounds):
        for run, seconds in sides:
            prepare()
            seconds.append(run())
        sides.reverse()
    return pairs


def drop_cache(paths: Iterable[Path]) -> None:
    """Drop the clean pages of *paths* from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
