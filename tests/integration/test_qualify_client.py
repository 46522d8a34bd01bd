"""The checks of the qualification on a real server that is broken on purpose.

There is no engine: two ranks without a model store and restore. `test_qualify` has the
same with a real one.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qualify import checks
from qualify.observation import Observation
from qualify.synthetic import CANARY, Bench, running_bench
from tests.integration.client import State
from tests.integration.geometry import PLAIN, Kind
from tests.integration.server import ServerConfig

CHUNKS, WINDOW, RANKS = 6, 2, 2
GOOD, OTHER, DAMAGED = (State(CHUNKS, seed) for seed in (1, 2, 3))
ROOM = (CHUNKS + 2) * RANKS * PLAIN.staged_bytes


def blocks(_kind: Kind) -> int:
    return CHUNKS


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    return ServerConfig(
        tmp_path_factory.mktemp("qualify") / "l2", l1_bytes=ROOM, window_chunks=WINDOW
    )


@pytest.fixture(scope="module")
def bench(config: ServerConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("windows") / "server"
    with running_bench(config, PLAIN, blocks, folder, RANKS) as bench:
        bench.release_seconds = 2.0
        for state in (CANARY, GOOD):
            bench.store(state)
        yield bench


def rejected_by(seen: Observation) -> set[str]:
    return {each.check for each in checks.rejections(seen)}


def test_a_good_restore_is_accepted(bench: Bench) -> None:
    assert checks.rejections(bench.restore(GOOD)) == ()


def test_a_tier_that_was_not_emptied_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store(OTHER)
    monkeypatch.setattr(bench.server, "clear_l1", lambda: None)

    seen = bench.restore(OTHER)

    assert checks.TIER in rejected_by(seen)
    assert checks.OUTPUT not in rejected_by(seen)


def test_a_damaged_object_of_the_right_size_is_noticed(bench: Bench) -> None:
    known = set(bench.server.config.l2_folder.iterdir())
    bench.store(DAMAGED)
    damaged, other, *_ = sorted(set(bench.server.config.l2_folder.iterdir()) - known)
    shutil.copyfile(other, damaged)

    assert rejected_by(bench.restore(DAMAGED)) == {checks.OUTPUT}


def test_a_layout_that_changed_is_noticed(bench: Bench) -> None:
    expected = replace(bench.in_full(GOOD), registrations=("another layout",) * RANKS)

    assert rejected_by(bench.restore(GOOD, expected)) == {checks.REGISTRATION}


def test_a_rank_that_left_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = bench.canary

    def leave_first() -> str:
        bench.client.ranks[-1].leave()
        return canary()

    monkeypatch.setattr(bench, "canary", leave_first)

    assert rejected_by(bench.restore(GOOD)) == {checks.HEALTH}


@pytest.mark.parametrize(
    ("l1_bytes", "check"),
    [(ROOM, checks.BOUND), (WINDOW * PLAIN.staged_bytes, checks.CACHED_TOKENS)],
    ids=["large L1", "small L1"],
)
@pytest.mark.usefixtures("bench")
def test_a_server_that_ignores_windows_is_noticed(
    config: ServerConfig, tmp_path: Path, l1_bytes: int, check: str
) -> None:
    ignoring = replace(config, window_chunks=None, l1_bytes=l1_bytes)
    with running_bench(ignoring, PLAIN, blocks, tmp_path / "server", RANKS) as bench:
        bench.release_seconds = 2.0
        found = rejected_by(bench.restore(GOOD, bench.through_windows(GOOD, WINDOW)))

    assert check in found
    assert (found == {checks.BOUND}) == (check == checks.BOUND)
