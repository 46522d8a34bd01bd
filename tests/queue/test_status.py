from datetime import UTC, datetime

import pytest

from patchqueue.errors import QueueError
from patchqueue.layout import Layout
from patchqueue.status import status

NOW = datetime(2100, 1, 1, tzinfo=UTC)


def test_the_series_at_a_glance(queue: Layout) -> None:
    head, first, second, engine, total = status(queue, NOW).splitlines()
    assert head.split() == ["patch", "source", "tests", "docs", "guards", "upstream", "days"]
    # In the order of the series, whose trees alternate as they like.
    assert {line.split()[0] for line in (first, second, engine)} == {
        "lmcache/first-fix.patch",
        "lmcache/second-fix.patch",
        "vllm/engine-fix.patch",
    }
    assert first.split()[1:6] == ["2", "1", "0", "1", "Pending"]
    assert int(first.split()[6]) > 26000
    assert total.split() == ["3", "patches", "6", "3", "0"]


def test_a_patch_without_a_guard_is_an_error(queue: Layout) -> None:
    path = queue.patches / "lmcache/first-fix.patch"
    path.write_text(path.read_text().replace("Tests: tests/test_lmcache.py", "Tests: README.md"))
    with pytest.raises(QueueError, match=r"no test guards lmcache/first-fix\.patch"):
        status(queue, NOW)
