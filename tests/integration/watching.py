"""Watch a number while something happens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

POLL_SECONDS = 0.1


@dataclass
class Watched:
    """The largest value seen."""

    largest: int = 0


@contextmanager
def watched(value: Callable[[], int]) -> Iterator[Watched]:
    """Poll a value in the with block; the result holds the largest."""
    seen, over = Watched(), threading.Event()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            seen.largest = max(seen.largest, value())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
