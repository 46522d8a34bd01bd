"""Wait for a condition, with a deadline and a message that says what for."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.05


class WaitTimeoutError(AssertionError):
    """A condition did not come true before its deadline."""


def wait_until(
    condition: Callable[[], bool],
    what: str,
    seconds: float,
    explain: Callable[[], str] = lambda: "",
) -> None:
    """Return once condition() is true; raise WaitTimeoutError after some seconds.

    explain() is called on failure only; its text ends the message.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            details = explain()
            raise WaitTimeoutError(f"not within {seconds:g} s: {what}\n{details}".strip())
        time.sleep(POLL_SECONDS)


class Steady:
    """Whether something held, and a value stayed the same, over several polls."""

    def __init__(self, polls: int) -> None:
        """Ask for so many polls in a row."""
        self._polls = polls
        self._seen = 0
        self._value: object = None

    def holds(self, *, condition: bool, value: object) -> bool:
        """Take one observation into account and tell whether that is enough."""
        same = condition and value == self._value
        self._seen = self._seen + 1 if same else 0
        self._value = value
        return self._seen >= self._polls
