"""Schedules in which something was found, shrunk.

Every run begins with them. A new finding is added as it was printed.
"""

from tests.faults.faulty_l2 import Fault, LookupFault
from tests.faults.restore_server import MESSAGES, ONE_RANK, SHARED_MEMORY
from tests.faults.restore_steps import (
    Answer,
    BeginStore,
    FailLookup,
    HoldCopy,
    LateRestore,
    LateWindow,
    Leave,
    Restore,
    Schedule,
    Store,
)

FOUND = (
    # Upstream admitted a store that its worker had begun and never ended.
    Schedule(
        SHARED_MEMORY,
        (Restore(0, 0, 0, False), BeginStore(0, 1), Leave(0)),
        stop=False,
        reports=0,
    ),
    # The promises took a lookup that L2 had not answered at a stop for a leak.
    Schedule(
        ONE_RANK,
        (Restore(0, 0, 0, False), FailLookup(LookupFault.STALL), Answer(0, Fault.NONE, 0)),
        stop=True,
        reports=0,
    ),
    # A restore beside a held copy was taken for one that waits, and the server stopped.
    Schedule(
        MESSAGES,
        (Restore(1, 0, 5, False), HoldCopy(), Answer(0, Fault.NONE, 0), Restore(0, 0, 5, False)),
        stop=True,
        reports=0,
    ),
    # The copies of two workers were held, and one was expected to go on.
    Schedule(
        MESSAGES,
        (
            Restore(0, 0, 0, False),
            Restore(1, 0, 0, False),
            HoldCopy(),
            Answer(0, Fault.NONE, 0),
            HoldCopy(),
            Answer(0, Fault.NONE, 0),
        ),
        stop=False,
        reports=0,
    ),
    # A store behind a held copy was under way when L2 was closed.
    Schedule(
        ONE_RANK,
        (
            Restore(0, 1, 0, False),
            HoldCopy(),
            Answer(0, Fault.NONE, 0),
            Store(0, 0, 2, False),
        ),
        stop=True,
        reports=0,
    ),
    # A restore whose window had not begun was expected to be late.
    Schedule(
        SHARED_MEMORY,
        (
            Restore(0, 0, 5, False),
            Answer(0, Fault.NONE, 0),
            Restore(1, 0, 10, True),
            LateRestore(),
            Restore(1, 1, 1, True),
            LateWindow(),
        ),
        stop=False,
        reports=0,
    ),
)
