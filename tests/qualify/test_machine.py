"""What is said about the checkout and the machine."""

import re

from patchqueue.layout import TREES
from qualify import machine


def test_the_queue_is_known_by_its_bytes() -> None:
    subject = machine.subject()

    assert re.fullmatch("[0-9a-f]{64}", subject.queue)
    assert set(subject.pins) == set(TREES)


def test_the_machine_is_described_without_its_name() -> None:
    made = machine.this_machine()

    assert re.fullmatch(r"\w+ CPU cores?", made.description)
    assert made.memory_bytes > machine.available_bytes() > 0
