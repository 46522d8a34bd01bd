# SPDX-License-Identifier: Apache-2.0
"""Compare restores through windows with restores of the whole plan.

Two real LMCache servers stand over the same folder of real files, one with windows of
W chunks and one without. A client without a model looks up and retrieves the same
256 MiB, 32 chunks of 8 MiB, from both. Printed are the median milliseconds of lookup
and retrieve together, and the median of the pairs' ratios.

A cold run drops the files from the page cache first. Before each run the servers' L1 is
empty; its memory, and the destination's, has been touched by the runs that are not
counted.

This measures a machine; it is not a test and never fails on a slow one::

    nox -s benchmark -- restore_windows --windows 2,8 --rounds 15
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.pairs import drop_cache, measure_pairs
from tests.integration.client import Client, Deployment, State, connected
from tests.integration.geometry import PLAIN, Kind
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import MIB

CONCURRENCY = "LMCACHE_FS_LOAD_CONCURRENCY"
STATE = State(chunks=32, seed=1)
WARM_UP_ROUNDS = 4


class Side:
    """A server, and a client that restores from it."""

    def __init__(self, server: LMCacheServer, client: Client) -> None:
        self._server = server
        self._client = client

    def store(self) -> None:
        """Store the state, so that L2 has its files."""
        self._client.store(STATE)
        self._server.wait_stored(STATE.chunks)

    def empty(self) -> None:
        """Remove everything from L1."""
        self._server.clear_l1()
        self._server.wait_released()

    def restore(self) -> float:
        """Return the seconds of a lookup and retrieve."""
        return self._client.restore(STATE).seconds

    def check(self) -> None:
        """Check that the whole state is where it belongs.

        Raises:
            RuntimeError: If it is not.
        """
        for rank in self._client.ranks:
            if differences := rank.differences(STATE):
                raise RuntimeError(f"wrong bytes: {differences}")


@contextmanager
def running_side(config: ServerConfig, folder: Path) -> Iterator[Side]:
    """Yield a server that runs with *config* and a client of it."""
    folder.mkdir()
    with (
        running_server(config, folder) as server,
        connected(server.ports.messages, Deployment(PLAIN), one_for_each) as client,
    ):
        yield Side(server, client)


def one_for_each(_kind: Kind) -> int:
    """Give every chunk a block of its own."""
    return STATE.chunks


def compare(windowed: Side, whole: Side, before: Callable[[], None], rounds: int) -> str:
    """Return the rest of a line of the table: both medians and the ratio."""

    def prepare() -> None:
        windowed.empty()
        whole.empty()
        before()

    measure_pairs(windowed.restore, whole.restore, prepare, WARM_UP_ROUNDS)
    pairs = measure_pairs(windowed.restore, whole.restore, prepare, rounds)
    windowed.check()
    whole.check()
    ours, theirs = (1000 * statistics.median(each) for each in (pairs.first, pairs.second))
    return f"{ours:9.0f} {theirs:9.0f} {pairs.median_ratio():7.2f}"


def numbers(text: str) -> list[int]:
    """Parse numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, help="where the files go (default: TMPDIR)")
    parser.add_argument("--windows", type=numbers, default="2,4,8,16,32", help="values of W")
    parser.add_argument(
        "--concurrency", type=numbers, default="0,4", help="values of C; 0 leaves it unset"
    )
    parser.add_argument("--rounds", type=int, default=9, help="pairs per line")
    return parser.parse_args()


def main() -> None:
    """Store the state, measure every line and print the table."""
    args = parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="restore-bench-") as tmp:
        folder = Path(tmp)
        plain = ServerConfig(folder / "l2", l1_bytes=512 * MIB)
        with running_side(plain, folder / "store") as side:
            side.store()
        files = sorted(plain.l2_folder.glob("*.data"))
        before = {"cold": lambda: drop_cache(files), "warm": lambda: None}
        print(
            f"{STATE.chunks} chunks of {PLAIN.object_bytes / MIB:g} MiB, {os.cpu_count()} CPUs, "
            f"medians of {args.rounds} pairs, in ms"
        )
        print(f"{'mode':>6} {'C':>5} {'W':>3} {'windows':>9} {'whole':>9} {'ratio':>7}")
        for c in args.concurrency:
            base = replace(plain, environment={CONCURRENCY: str(c)} if c else {})
            with running_side(base, folder / f"whole-{c}") as whole:
                for w in args.windows:
                    windows = replace(base, window_chunks=w)
                    with running_side(windows, folder / f"windows-{c}-{w}") as windowed:
                        for mode, action in before.items():
                            line = compare(windowed, whole, action, args.rounds)
                            print(f"{mode:>6} {c or 'unset':>5} {w:>3} {line}", flush=True)


if __name__ == "__main__":
    main()
