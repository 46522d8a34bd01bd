"""An L2 that holds nothing: it makes each object's bytes from the object's key.

States come from it that are too large for a disk or for the time of a test. It says
that every key exists, and forgets what is stored. Each object may take a while, like
one of a slow store. The server loads `MadeObjects` through LMCache's adapter for
foreign clients; it needs `adapter` and `environment.plugin_environment`.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tests.integration.content import Content

Completion = tuple[int, bool, str, list[bool] | None]


def adapter(object_bytes: int, seconds_per_object: float = 0.0) -> dict[str, Any]:
    """Return the settings of the L2 adapter."""
    return {
        "type": "native_plugin",
        "module_path": "tests.integration.made_objects",
        "class_name": "MadeObjects",
        "adapter_params": {
            "object_bytes": object_bytes,
            "seconds_per_object": seconds_per_object,
        },
    }


class MadeObjects:
    """The client that LMCache's adapter drives: one thread, objects in their order."""

    def __init__(self, object_bytes: int, seconds_per_object: float) -> None:
        """Make the noise and start the thread."""
        self._content = Content(object_bytes)
        self._seconds_per_object = seconds_per_object
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._completed: SimpleQueue[Completion] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1)
        self._submitted = 0

    def event_fd(self) -> int:
        """Return the descriptor that is signalled when something completes."""
        return self._event

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Fill the views with the objects of the keys."""
        return self._submit(self._thread.submit, lambda: self._make(keys, views))

    def submit_batch_set(self, keys: Sequence[str], _views: Sequence[memoryview]) -> int:
        """Forget the objects."""
        return self._submit(_now, lambda: [True] * len(keys))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Say that all exist."""
        return self._submit(_now, lambda: [True] * len(keys))

    def drain_completions(self) -> list[Completion]:
        """Return what has completed since the last call."""
        os.eventfd_read(self._event)
        completions = []
        while True:
            try:
                completions.append(self._completed.get_nowait())
            except Empty:
                return completions

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
        os.close(self._event)

    def _submit(
        self, run: Callable[[Callable[[], None]], object], work: Callable[[], list[bool]]
    ) -> int:
        self._submitted += 1
        number = self._submitted

        def complete() -> None:
            self._completed.put((number, True, "", work()))
            os.eventfd_write(self._event, 1)

        run(complete)
        return number

    def _make(self, keys: Sequence[str], views: Sequence[memoryview]) -> list[bool]:
        for key, view in zip(keys, views, strict=True):
            time.sleep(self._seconds_per_object)
            _model, rank, _group, chunk, *_salt = key.split("@")
            made = self._content.of(bytes.fromhex(chunk), int(rank, 16))
            np.copyto(np.frombuffer(view, np.uint8), made)
        return [True] * len(keys)


def _now(complete: Callable[[], None]) -> None:
    complete()
