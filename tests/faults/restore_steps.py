"""What a schedule of restores and faults consists of, and the strategy that draws one.

Every step means something in every state, if only nothing: numbers choose among
what there is, modulo how much there is. A schedule is therefore data, and what
Hypothesis shrinks and prints is all there is to know about it.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.faults.faulty_l2 import Fault, LookupFault
from tests.faults.restore_server import (
    BLOCKS,
    CHUNKS,
    CONTENTS,
    MESSAGES,
    ONE_RANK,
    SHARED_MEMORY,
    TWO_L1S,
    TWO_RANKS,
    Setup,
)

MOST_STEPS = 14
SETUPS = (ONE_RANK, ONE_RANK, TWO_RANKS, TWO_L1S, MESSAGES, SHARED_MEMORY)


@dataclass(frozen=True)
class Restore:
    """Look a prompt up and ask for it; `again` takes the prompt asked for last."""

    worker: int
    content: int
    skip_blocks: int
    again: bool


@dataclass(frozen=True)
class Answer:
    """L2 ends a load, well or badly."""

    load: int
    fault: Fault
    cell: int


@dataclass(frozen=True)
class AnswerLookup:
    """L2 ends a lookup that it has stalled."""


@dataclass(frozen=True)
class FailLookup:
    """The next lookup goes wrong, a probe or that of a window."""

    fault: LookupFault


@dataclass(frozen=True)
class RefuseLoad:
    """Submitting the next load raises."""


@dataclass(frozen=True)
class LoseObject:
    """An object of the prompt asked for last goes from L2."""

    chunk: int


@dataclass(frozen=True)
class HoldCopy:
    """The next copy into a worker's blocks takes its time."""


@dataclass(frozen=True)
class FailCopy:
    """The next copy raises."""


@dataclass(frozen=True)
class EndCopy:
    """A copy that takes its time ends."""


@dataclass(frozen=True)
class Abort:
    """The engine ends a request."""

    request: int


@dataclass(frozen=True)
class Leave:
    """A worker unregisters."""

    worker: int


@dataclass(frozen=True)
class LateWindow:
    """The time for one window passes."""


@dataclass(frozen=True)
class LateRestore:
    """The time for a whole restore passes."""


@dataclass(frozen=True)
class FillL1:
    """Stores that go on take L1's memory."""

    objects: int


@dataclass(frozen=True)
class FreeL1:
    """Those stores give it back."""


@dataclass(frozen=True)
class Store:
    """A worker stores a prompt; with `hold`, L2 takes its time to take it."""

    worker: int
    content: int
    chunks: int
    hold: bool


@dataclass(frozen=True)
class BeginStore:
    """A worker writes a part of a prompt into shared memory, and never ends the store."""

    worker: int
    chunks: int


@dataclass(frozen=True)
class EndStores:
    """L2 has taken what was stored."""


Step = (
    Restore
    | Answer
    | AnswerLookup
    | FailLookup
    | RefuseLoad
    | LoseObject
    | HoldCopy
    | FailCopy
    | EndCopy
    | Abort
    | Leave
    | LateWindow
    | LateRestore
    | FillL1
    | FreeL1
    | Store
    | BeginStore
    | EndStores
)


@dataclass(frozen=True)
class Schedule:
    """Steps on a server and its workers, and how they end: with its stop, or in peace.

    At a stop L2 reports `reports` of the loads that it still has; it ends the
    others only when it is closed.
    """

    setup: Setup
    steps: tuple[Step, ...]
    stop: bool
    reports: int


_workers, _contents = st.integers(0, 1), st.integers(0, CONTENTS - 1)
_few = st.integers(0, 3)
_restores = st.builds(
    Restore, _workers, _contents, st.sampled_from([0, 0, 1, 2, 5, BLOCKS]), st.booleans()
)
_answers = st.builds(Answer, _few, st.just(Fault.NONE), st.just(0))
_failures = st.one_of(
    st.builds(Answer, _few, st.sampled_from(Fault), _few),
    st.builds(FailLookup, st.sampled_from(LookupFault)),
    st.just(RefuseLoad()),
    st.builds(LoseObject, st.integers(0, CHUNKS - 1)),
    st.just(FailCopy()),
)
_crossings = st.one_of(
    st.builds(Abort, _few),
    st.builds(Leave, _workers),
    st.just(LateWindow()),
    st.just(LateRestore()),
    st.builds(FillL1, st.integers(1, 10)),
    st.builds(Store, _workers, _contents, st.integers(1, 2), st.booleans()),
    st.builds(BeginStore, _workers, st.integers(1, 2)),
    st.just(HoldCopy()),
)
_ends: st.SearchStrategy[Step] = st.sampled_from([EndCopy(), EndStores(), AnswerLookup(), FreeL1()])
# None is no step: schedules are long, and still shrink to single steps.
_kinds: list[tuple[int, st.SearchStrategy[Step | None]]] = [
    (1, st.none()),
    (6, _answers),
    (2, _restores),
    (2, _failures),
    (4, _crossings),
    (2, _ends),
]
_steps = st.lists(
    st.sampled_from([kind for weight, kind in _kinds for _ in range(weight)]).flatmap(
        lambda kind: kind
    ),
    min_size=MOST_STEPS,
    max_size=MOST_STEPS,
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw schedules that begin with a restore; one in twenty stops the server."""
    setup = draw(st.sampled_from(SETUPS))
    first, others = draw(_restores), draw(_steps)
    stop = draw(st.integers(1, 20)) == 20
    steps = (first, *(step for step in others if step is not None))
    return Schedule(setup, steps, stop, draw(st.integers(0, 2)) if stop else 0)
