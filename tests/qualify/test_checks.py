"""Each check catches its fault, and no other check does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from qualify import checks
from qualify.observation import Observation
from tests.qualify import made
from tests.qualify.made import CHUNKS, MIB, TOKENS, WRONG, counted

Change = Callable[[Observation], Observation]


def reading(**changes: object) -> Change:
    return lambda seen: replace(seen, before=replace(seen.before, **changes))  # type: ignore[arg-type]


def after(**changes: object) -> Change:
    return lambda seen: replace(seen, after=replace(seen.after, **changes))  # type: ignore[arg-type]


def output(**changes: object) -> Change:
    return lambda seen: replace(seen, output=replace(seen.output, **changes))  # type: ignore[arg-type]


def health(**changes: object) -> Change:
    return lambda seen: replace(seen, health=replace(seen.health, **changes))  # type: ignore[arg-type]


def registered(count: int) -> Change:
    names = (made.REGISTRATION,) * count
    return lambda seen: replace(
        seen,
        before=replace(seen.before, registrations=names),
        after=replace(seen.after, registrations=names),
    )


def without(counter: str) -> Change:
    def change(seen: Observation) -> Observation:
        left = {name: value for name, value in seen.after.counters.items() if name != counter}
        return replace(seen, after=replace(seen.after, counters=left))

    return change


OTHER_LAYOUT = made.REGISTRATION.replace('"num_layers": 4', '"num_layers": 3')

FAULTS: dict[str, tuple[str, Change]] = {
    "nothing was reused": (checks.CACHED_TOKENS, lambda seen: replace(seen, reused_tokens=0)),
    "one chunk less was reused": (
        checks.CACHED_TOKENS,
        lambda seen: replace(seen, reused_tokens=TOKENS - 32),
    ),
    "the engine counts another hit": (
        checks.CACHED_TOKENS,
        lambda seen: counted(seen, external_hit_tokens=TOKENS + 32),
    ),
    "the reference was not computed from nothing": (
        checks.CACHED_TOKENS,
        output(reference_reused_tokens=32),
    ),
    "L1 was not empty": (checks.TIER, reading(l1_used_bytes=MIB)),
    "L1 was locked": (checks.TIER, reading(l1_locks=1)),
    "tokens came from L1": (checks.TIER, lambda seen: counted(seen, l1_hit_tokens=32)),
    "tokens came from vLLM": (checks.TIER, lambda seen: counted(seen, local_hit_tokens=32)),
    "L2 was not asked": (checks.TIER, lambda seen: counted(seen, l2_hit_tokens=0)),
    "an object was not loaded": (
        checks.TIER,
        lambda seen: counted(seen, loaded_objects=CHUNKS - 1),
    ),
    "the server does not say where from": (checks.TIER, without("l1_hit_tokens")),
    "another layout was registered": (
        checks.REGISTRATION,
        after(registrations=(OTHER_LAYOUT,)),
    ),
    "the layout was another before": (
        checks.REGISTRATION,
        reading(registrations=(OTHER_LAYOUT,)),
    ),
    "a rank was not registered": (checks.REGISTRATION, registered(0)),
    "a rank too many was registered": (checks.REGISTRATION, registered(2)),
    "the output is another": (checks.OUTPUT, output(got=WRONG)),
    "a chunk is in a wrong place": (checks.OUTPUT, output(differences=("chunk 3",))),
    "nothing was compared": (checks.OUTPUT, output(compared=0)),
    "the engine is dead": (checks.HEALTH, health(engine=False)),
    "the server is dead": (checks.HEALTH, health(server=False)),
    "a rank has left": (checks.HEALTH, health(registered=0)),
    "the next request fails": (checks.HEALTH, health(canary="")),
    "the next request is answered wrong": (checks.HEALTH, health(canary=WRONG)),
    "bytes are left": (checks.HEALTH, health(l1_used_bytes=MIB)),
    "locks are left": (checks.HEALTH, health(l1_locks=2)),
    "staging is left": (checks.HEALTH, health(staging_bytes=MIB)),
    "no window was used": (checks.BOUND, lambda seen: counted(seen, restore_windows=0)),
    "windows installed too little": (checks.BOUND, lambda seen: counted(seen, restore_bytes=MIB)),
    "a window was too large": (checks.BOUND, after(peak_bytes=made.PEAK + MIB)),
    "the server counts no peak": (checks.BOUND, after(peak_bytes=None)),
}


def test_nothing_speaks_against_a_good_restore() -> None:
    assert checks.rejections(made.observation()) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_check_alone_catches_a_fault(name: str) -> None:
    check, change = FAULTS[name]

    found = checks.rejections(change(made.observation()))

    assert {each.check for each in found} == {check}


@pytest.mark.parametrize("check", checks.CHECKS)
def test_every_check_has_a_fault(check: str) -> None:
    assert check in {each for each, _ in FAULTS.values()}


def test_a_larger_restore_before_does_not_count() -> None:
    seen = made.observation()
    larger = replace(seen.before, peak_bytes=2 * made.PEAK)

    found = checks.rejections(
        replace(seen, before=larger, after=replace(seen.after, peak_bytes=2 * made.PEAK))
    )

    assert found == ()


def test_a_client_without_a_model_has_no_cache_of_its_own() -> None:
    seen = made.observation()
    counters = {
        name: value
        for name, value in seen.after.counters.items()
        if name not in ("local_hit_tokens", "external_hit_tokens")
    }
    without_engine = health(engine=None)(seen)

    assert checks.rejections(after(counters=counters)(without_engine)) == ()
