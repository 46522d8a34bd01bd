"""The five acceptance checks, and the bound, over raw observations.

Each check returns the reasons to reject the restore, in words; none if it holds. What
cannot be shown counts as wrong: an absent counter proves nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qualify.observation import Observation

CACHED_TOKENS = "cached-token accounting"
TIER = "tier isolation"
REGISTRATION = "registration identity"
OUTPUT = "canonical output equality"
HEALTH = "health of every rank"
BOUND = "space bound"
RUN = "run"
"""Not a check: the row could not be measured at all."""


@dataclass(frozen=True)
class Rejection:
    """Why a row does not count."""

    check: str
    reason: str


Check = Callable[[Observation], Iterator[str]]


def cached_tokens(seen: Observation) -> Iterator[str]:
    """The engine reused as many tokens as it should, and all sides count the same."""
    expected = seen.expected
    if seen.reused_tokens != expected.reused_tokens:
        yield f"{seen.reused_tokens} of {expected.reused_tokens} tokens were reused"
    if seen.output.reference_reused_tokens:
        yield f"the reference itself reused {seen.output.reference_reused_tokens} tokens"
    if expected.promised_tokens is None or seen.health.engine is None:
        return
    yield from _grew(seen, "external_hit_tokens", expected.promised_tokens, "tokens of the hit")


def tier_isolation(seen: Observation) -> Iterator[str]:
    """Every byte came from L2: none from L1 or from the engine's own cache."""
    if seen.before.l1_used_bytes:
        yield f"L1 held {seen.before.l1_used_bytes} bytes before the restore"
    if seen.before.l1_locks:
        yield f"L1 held {seen.before.l1_locks} locks before the restore"
    yield from _grew(seen, "l1_hit_tokens", 0, "tokens found in L1")
    if seen.health.engine is not None:
        yield from _grew(seen, "local_hit_tokens", 0, "tokens from the engine's own cache")
    if seen.expected.promised_tokens is not None:
        yield from _grew(seen, "l2_hit_tokens", seen.expected.promised_tokens, "tokens found in L2")
    if seen.expected.objects is not None:
        yield from _grew(seen, "loaded_objects", seen.expected.objects, "objects loaded from L2")


def registration_identity(seen: Observation) -> Iterator[str]:
    """The ranks had registered the same tensors as when the state was stored."""
    expected, ranks = seen.expected.registrations, seen.health.ranks
    for when, reading in (("before", seen.before), ("after", seen.after)):
        if len(reading.registrations) != ranks:
            yield f"{len(reading.registrations)} of {ranks} ranks are registered {when} the restore"
        elif reading.registrations != expected:
            yield f"what is registered {when} the restore is not what stored the state"


def canonical_output(seen: Observation) -> Iterator[str]:
    """The output is that of the reference, which was computed from nothing."""
    output = seen.output
    if output.compared <= 0:
        yield f"no {output.kind} were compared"
    if output.differences:
        yield f"{output.kind} differ: {'; '.join(output.differences)}"
    if output.expected != output.got:
        yield f"{output.kind} have digest {output.got[:12]}, not {output.expected[:12]}"


def health(seen: Observation) -> Iterator[str]:
    """All parts live, answer as before, and hold nothing of the restore."""
    state = seen.health
    if state.engine is False:
        yield "the engine is not healthy"
    if not state.server:
        yield "the server is not healthy"
    if state.registered != state.ranks:
        yield f"{state.registered} of {state.ranks} ranks are registered"
    if state.canary != state.canary_expected or not state.canary:
        yield f"the request afterwards was answered with {state.canary or 'nothing'}"
    if state.l1_used_bytes or state.l1_locks or state.staging_bytes:
        yield (
            f"left in L1: {state.l1_used_bytes} bytes, {state.l1_locks} locks, "
            f"{state.staging_bytes} bytes of staging"
        )


def space_bound(seen: Observation) -> Iterator[str]:
    """Windows of the size that was asked for installed it, and took no more than that."""
    expected = seen.expected
    if expected.windows is not None:
        yield from _grew(seen, "restore_windows", expected.windows, "windows installed")
    if expected.installed_bytes is not None:
        yield from _grew(seen, "restore_bytes", expected.installed_bytes, "bytes installed")
    if expected.peak_bytes is not None:
        # The server counts the peak of all its restores.
        peak = max(expected.peak_bytes, seen.before.peak_bytes or 0)
        if seen.after.peak_bytes != peak:
            yield f"the staging peaked at {seen.after.peak_bytes} bytes, not {peak}"


CHECKS: dict[str, Check] = {
    CACHED_TOKENS: cached_tokens,
    TIER: tier_isolation,
    REGISTRATION: registration_identity,
    OUTPUT: canonical_output,
    HEALTH: health,
    BOUND: space_bound,
}


def rejections(seen: Observation) -> tuple[Rejection, ...]:
    """Everything that is wrong with a restore."""
    return tuple(
        Rejection(name, reason) for name, check in CHECKS.items() for reason in check(seen)
    )


def _grew(seen: Observation, counter: str, expected: int, what: str) -> Iterator[str]:
    grown = seen.grown(counter)
    if grown is None:
        yield f"{what}: not reported"
    elif grown != expected:
        yield f"{what}: {grown:.0f}, not {expected}"
