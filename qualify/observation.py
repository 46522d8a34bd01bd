"""What was seen of one restore: raw figures, and what they are compared with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PHASES = ("probe", "fetch", "copy", "release")


@dataclass(frozen=True)
class Expected:
    """What an accepted restore shows; None where the experiment cannot know it.

    Attributes:
        reused_tokens: tokens that the engine reuses.
        promised_tokens: tokens that the lookup finds in L2.
        objects: objects that come from L2.
        windows: windows that are installed, 0 for a whole plan.
        installed_bytes: bytes that windows install.
        peak_bytes: the most that this restore stages in L1, exactly.
        registrations: what the ranks had registered when the state was stored.
    """

    reused_tokens: int
    promised_tokens: int | None
    objects: int | None
    windows: int | None
    installed_bytes: int | None
    peak_bytes: int | None
    registrations: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """What server and engine said at one moment.

    A counter that a part does not have is absent: the client without a model has no
    prefix cache of its own.
    """

    l1_used_bytes: int
    l1_locks: int
    peak_bytes: int | None
    registrations: tuple[str, ...]
    counters: Mapping[str, float]


@dataclass(frozen=True)
class Output:
    """What the restore produced beside what it should have produced.

    Attributes:
        kind: what is compared.
        compared: how many of these.
        reference_reused_tokens: what the reference itself took from a cache.
        expected: digest of the reference.
        got: digest of what the restore led to.
        differences: the first ones, in words.
    """

    kind: str
    compared: int
    reference_reused_tokens: int
    expected: str
    got: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """The state of every part once the restore is over and L1 has been emptied.

    Attributes:
        engine: whether the engine is healthy; None where there is none.
        server: whether the server is healthy.
        registered: how many ranks the server has.
        ranks: how many there must be.
        canary: what a request after the restore answered.
        canary_expected: what it answered before.
        l1_used_bytes: what is left in L1.
        l1_locks: locks that are left in L1.
        staging_bytes: what restores still hold.
    """

    engine: bool | None
    server: bool
    registered: int
    ranks: int
    canary: str
    canary_expected: str
    l1_used_bytes: int
    l1_locks: int
    staging_bytes: int


@dataclass(frozen=True)
class Observation:
    """One restore."""

    expected: Expected
    before: Reading
    after: Reading
    reused_tokens: int
    output: Output
    health: Health
    seconds: float
    largest_l1_bytes: int

    def grown(self, counter: str) -> float | None:
        """How far a counter has got; None if a reading lacks it."""
        if counter not in self.before.counters or counter not in self.after.counters:
            return None
        return self.after.counters[counter] - self.before.counters[counter]

    def phases(self) -> dict[str, float]:
        """The seconds of each phase, by the server's own clock."""
        return {phase: self.grown(f"seconds_{phase}") or 0.0 for phase in PHASES}


def first_few(differences: Iterable[str], most: int = 5) -> tuple[str, ...]:
    """The first differences, which are enough to reject a row."""
    return tuple(difference for difference, _ in zip(differences, range(most), strict=False))
