"""Observations and runs as a real stack gives them, to be changed by a test.

The figures are those of a state of 64 chunks, 2,048 tokens, restored in windows of 4
by a real engine of one rank.
"""

from dataclasses import replace
from typing import Any

from qualify.checks import Rejection
from qualify.evidence import Evidence, Machine, NotRun, Row, Subject, Value
from qualify.experiments.names import (
    ACCOUNTING,
    ALL,
    COMPUTED,
    FILES,
    GIVEN,
    LADDER,
    LAW,
    SWEEP,
    TIME,
)
from qualify.observation import PHASES, Expected, Health, Observation, Output, Reading

MIB = 1 << 20
CHUNKS, WINDOW, TOKENS = 64, 4, 2048
PEAK = WINDOW * MIB
REGISTRATION = (
    '{"kv_cache_layout": {"cache_size_per_token": 32768, "num_layers": 4}, '
    '"model_name": "one-group", "world_size": 1}'
)
RIGHT, WRONG = "5e5b06b2", "90ad2a1c"

COUNTERS = {
    "l1_hit_tokens": 96.0,
    "l2_hit_tokens": 4096.0,
    "loaded_objects": 128.0,
    "restore_windows": 32.0,
    "restore_bytes": 128.0 * MIB,
    "local_hit_tokens": 640.0,
    "external_hit_tokens": 4096.0,
    **{f"seconds_{phase}": 1.5 for phase in PHASES},
}
GROWN = {
    "l2_hit_tokens": TOKENS,
    "loaded_objects": CHUNKS,
    "restore_windows": CHUNKS // WINDOW,
    "restore_bytes": CHUNKS * MIB,
    "external_hit_tokens": TOKENS,
    **{f"seconds_{phase}": 0.25 for phase in PHASES},
}


def observation() -> Observation:
    """A restore that nothing speaks against."""
    before = Reading(0, 0, PEAK, (REGISTRATION,), COUNTERS)
    after = {name: value + GROWN.get(name, 0) for name, value in COUNTERS.items()}
    return Observation(
        expected=Expected(
            TOKENS, TOKENS, CHUNKS, CHUNKS // WINDOW, CHUNKS * MIB, PEAK, (REGISTRATION,)
        ),
        before=before,
        after=replace(before, counters=after),
        reused_tokens=TOKENS,
        output=Output("output tokens", 16, 0, RIGHT, RIGHT),
        health=Health(True, True, 1, 1, RIGHT, RIGHT, 0, 0, 0),
        seconds=0.5,
        largest_l1_bytes=PEAK,
    )


def counted(seen: Observation, **grown: float) -> Observation:
    """The same restore, but some counters have grown by something else."""
    counters = {name: seen.before.counters[name] + value for name, value in grown.items()}
    after = replace(seen.after, counters={**seen.after.counters, **counters})
    return replace(seen, after=after)


def row(experiment: str = SWEEP, name: str = "64 chunks", **changes: Any) -> Row:
    """A row that rests on that restore."""
    setup: dict[str, Value] = {
        "tokens": TOKENS,
        "chunks": CHUNKS,
        "state_bytes": CHUNKS * MIB,
        "window_chunks": WINDOW,
        "l1_bytes": PEAK,
        "chunk_bytes": MIB,
        "fresh": False,
    }
    figures: dict[str, Value] = {
        "reused tokens": TOKENS,
        "peak MiB": 4.0,
        "largest L1 seen, MiB": 4.0,
        "seconds": 0.5,
    }
    kept = Row(experiment, name, "real engine", setup, figures, {}, (observation(),))
    return replace(kept, **changes)


def evidence() -> Evidence:
    """A complete run with a row for each picture."""
    made = Evidence(
        "smoke",
        "2026-11-29T20:00:00+00:00",
        Subject({"vllm": "0.32.0", "lmcache": "0.5.6"}, {"vllm": "0.32.0"}, "ab" * 32, "", False),
        Machine("two CPU cores", "x86_64", "Linux", "3.11.7", 24 << 30),
        load=[0.5, 1.25],
    )
    base = row()
    plan = {**base.setup, "window_chunks": 0, "l1_bytes": CHUNKS * MIB}
    shorter = {**plan, "l1_bytes": CHUNKS * MIB // 2}
    nothing = {**base.figures, "reused tokens": 0, "peak MiB": None}
    timed = {"windows / whole": 1.1, **{f"{phase} s": 0.1 for phase in PHASES}}
    pair = {"ratio": 2.9, "peak MiB, C = 1": 4.0, "peak MiB, C = 4": 4.0}
    made.rows += [
        base,
        row(name="64 chunks, fresh salt", setup={**base.setup, "fresh": True}),
        row(LAW, "W = 4"),
        row(LAW, "W = 8", setup={**base.setup, "window_chunks": 8},
            figures={**base.figures, "peak MiB": 8.0}),
        row(LADDER, "64 chunks, L1 of 32", setup=shorter, figures=nothing),
        row(LADDER, "64 chunks, L1 of 64", setup=plan, figures={**base.figures, "peak MiB": None}),
        row(FILES, "slow storage, C = 1 and 4", setup={**base.setup, "latency": 0.05},
            figures=pair, series={"C = 1": (1.5, 1.25)}),
        row(ACCOUNTING, "the engine's model", figures=accounted(MIB, MIB)),
        row(TIME, "windows and whole plan", figures=timed, setup={**base.setup, "mode": "warm"}),
    ]  # fmt: skip
    made.not_run.append(NotRun(ALL[3], "not asked for"))
    made.complete, made.finished = True, "2026-11-29T20:05:00+00:00"
    return made


def accounted(computed: int, given: int) -> dict[str, Value]:
    """The figures of an account."""
    return {
        "tensors": 4,
        "bytes per chunk": computed,
        COMPUTED: computed,
        GIVEN: given,
    }


def rejected(check: str, reason: str) -> tuple[Rejection, ...]:
    """One reason."""
    return (Rejection(check, reason),)
