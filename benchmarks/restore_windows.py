# SPDX-License-Identifier: Apache-2.0
"""Compare restores through windows with restores of the whole plan.

Two real LMCache servers stand over the same folder of real files, one with windows of
W chunks and one without. A client without a model looks up and retrieves the same
chunks of 8 MiB from both, 32 of them if nothing else is asked for. Printed are the
median milliseconds of lookup and retrieve together, the median of the pairs' ratios,
and the means of what the server with windows counts for the phases of a restore.

A cold run drops the files from the page cache first. Before each run the servers' L1 is
empty; its memory, and the destination's, has been touched by the runs that are not
counted.

This measures a machine; it is not a test and never fails on a slow one::

    nox -s benchmark -- restore_windows --windows 2,8 --rounds 15

With ``--device cuda`` the client's blocks lie on a GPU, for which the servers need
LMCache's CUDA wheel.
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
from tests.integration.devices import CPU, CUDA, Device
from tests.integration.geometry import PLAIN, Kind
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import MIB

CONCURRENCY = "LMCACHE_FS_LOAD_CONCURRENCY"
DEVICES = {device.name: device for device in (CPU, CUDA)}
PHASES = ("probe", "fetch", "copy", "release")


class Side:
    """A server, and a client that restores from it."""

    def __init__(self, server: LMCacheServer, client: Client, state: State) -> None:
        self._server = server
        self._client = client
        self._state = state

    def store(self) -> None:
        """Store the state, so that L2 has its files."""
        self._client.store(self._state)
        self._server.wait_stored(self._state.chunks)

    def empty(self) -> None:
        """Remove everything from L1."""
        self._server.clear_l1()
        self._server.wait_released()

    def restore(self) -> float:
        """Return the seconds of a lookup and retrieve."""
        return self._client.restore(self._state).seconds

    def phase_seconds(self) -> list[float]:
        """Return the seconds that the server has counted so far for each phase."""
        seconds = self._server.storage_status()["restore"]["seconds"]
        return [seconds[phase] for phase in PHASES]

    def check(self) -> None:
        """Check that the whole state is where it belongs.

        Raises:
            RuntimeError: If it is not.
        """
        for rank in self._client.ranks:
            if differences := rank.differences(self._state):
                raise RuntimeError(f"wrong bytes: {differences}")


@contextmanager
def running_side(
    config: ServerConfig, folder: Path, state: State, device: Device
) -> Iterator[Side]:
    """Yield a server that runs with *config* and a client of it."""

    def one_for_each(_kind: Kind) -> int:
        return state.chunks

    folder.mkdir()
    with (
        running_server(config, folder) as server,
        connected(server.ports.messages, Deployment(PLAIN), one_for_each, device) as client,
    ):
        yield Side(server, client, state)


def compare(
    windowed: Side, whole: Side, before: Callable[[], None], warm_up: int, rounds: int
) -> str:
    """Return the rest of a line of the table: both medians, the ratio and the phases."""

    def prepare() -> None:
        windowed.empty()
        whole.empty()
        before()

    measure_pairs(windowed.restore, whole.restore, prepare, warm_up)
    begun = windowed.phase_seconds()
    pairs = measure_pairs(windowed.restore, whole.restore, prepare, rounds)
    ended = windowed.phase_seconds()
    windowed.check()
    whole.check()
    ours, theirs = (1000 * statistics.median(each) for each in (pairs.first, pairs.second))
    phases = "".join(f"{1000 * (b - a) / rounds:9.1f}" for a, b in zip(begun, ended, strict=True))
    return f"{ours:9.1f} {theirs:9.1f} {pairs.median_ratio():7.2f}{phases}"


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
    parser.add_argument("--modes", default="cold,warm", help="cold, warm or both")
    parser.add_argument("--chunks", type=int, default=32, help="chunks of the state")
    parser.add_argument("--device", choices=DEVICES, default=CPU.name, help="of the client")
    parser.add_argument("--warm-up", type=int, default=4, help="pairs that are not counted")
    parser.add_argument("--rounds", type=int, default=9, help="pairs per line")
    return parser.parse_args()


def main() -> None:
    """Store the state, measure every line and print the table."""
    args = parse_args()
    state, device = State(args.chunks, seed=1), DEVICES[args.device]
    l1_bytes = 2 * state.chunks * PLAIN.staged_bytes
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="restore-bench-") as tmp:
        folder = Path(tmp)
        plain = ServerConfig(folder / "l2", l1_bytes=l1_bytes)
        with running_side(plain, folder / "store", state, device) as side:
            side.store()
        files = sorted(plain.l2_folder.glob("*.data"))
        before = {"cold": lambda: drop_cache(files), "warm": lambda: None}
        print(
            f"{state.chunks} chunks of {PLAIN.object_bytes / MIB:g} MiB to {device.name}, "
            f"{os.cpu_count()} CPUs, medians of {args.rounds} pairs, in ms"
        )
        names = "".join(f"{phase:>9}" for phase in PHASES)
        print(f"{'mode':>6} {'C':>5} {'W':>3} {'windows':>9} {'whole':>9} {'ratio':>7}{names}")
        for c in args.concurrency:
            base = replace(plain, environment={CONCURRENCY: str(c)} if c else {})
            with running_side(base, folder / f"whole-{c}", state, device) as whole:
                for w in args.windows:
                    windows, logs = replace(base, window_chunks=w), folder / f"windows-{c}-{w}"
                    with running_side(windows, logs, state, device) as windowed:
                        for mode in args.modes.split(","):
                            line = compare(windowed, whole, before[mode], args.warm_up, args.rounds)
                            print(f"{mode:>6} {c or 'unset':>5} {w:>3} {line}", flush=True)


if __name__ == "__main__":
    main()
