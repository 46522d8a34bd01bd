# SPDX-License-Identifier: Apache-2.0
"""Compare the latency of a store during a restore with its latency without one.

A real LMCache server restores 64 chunks of 8 MiB through windows, from an L2 that takes
50 ms an object and makes each object's bytes from its key. The rank that retrieves them
stores another chunk ten times a second until the restore has ended, and then as often
without a restore. Printed are the medians, the largest latencies, and the median of the
rounds' ratios of medians.

This measures a machine; it is not a test and never fails on a slow one::

    nox -s benchmark -- store_during_restore --rounds 9
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.integration import made_objects
from tests.integration.client import Client, Deployment, State, connected
from tests.integration.devices import CPU, CUDA, Device
from tests.integration.environment import plugin_environment
from tests.integration.geometry import PLAIN, Kind
from tests.integration.server import LMCacheServer, ServerConfig
from tests.integration.stack import running_server
from tests.integration.units import GIB

SECONDS_PER_OBJECT = 0.05
RESTORED = State(chunks=64, seed=1)
STORE_EVERY_SECONDS = 0.1
WARM_UP_ROUNDS = 2
DEVICES = {device.name: device for device in (CPU, CUDA)}

_seeds = count(2)


def a_few(_kind: Kind) -> int:
    """Let chunks share blocks: nobody reads what this benchmark restores."""
    return 16


@contextmanager
def running(window: int, folder: Path, device: Device) -> Iterator[tuple[LMCacheServer, Client]]:
    """Yield a server with a slow L2 and a client of it."""
    config = ServerConfig(
        folder / "l2",
        adapter=made_objects.adapter(PLAIN.object_bytes, SECONDS_PER_OBJECT),
        l1_bytes=GIB,
        window_chunks=window,
        environment=plugin_environment(),
    )
    with (
        running_server(config, folder) as server,
        connected(server.ports.messages, Deployment(PLAIN), a_few, device) as client,
    ):
        yield server, client


def store(client: Client) -> float:
    """Store one new chunk and return the seconds it took.

    Raises:
        RuntimeError: If the server did not store it.
    """
    state = State(chunks=1, seed=next(_seeds))
    _ = state.tokens  # Made before the clock starts.
    (rank,) = client.ranks
    began = time.perf_counter()
    stored = rank.store(state)
    seconds = time.perf_counter() - began
    if not stored:
        raise RuntimeError("a store failed")
    return seconds


def stores_while(client: Client, wanted: Callable[[int], bool]) -> list[float]:
    """Return the seconds of stores, as long as *wanted* says so of their number."""
    latencies: list[float] = []
    while wanted(len(latencies)):
        latencies.append(store(client))
        time.sleep(STORE_EVERY_SECONDS)
    return latencies


def measure(client: Client, pool: ThreadPoolExecutor) -> tuple[list[float], list[float]]:
    """Return the latencies of stores during a restore, and of as many without one."""
    restore = pool.submit(client.restore, RESTORED)
    during = stores_while(client, lambda _count: not restore.done())
    restore.result()
    return during, stores_while(client, lambda stored: stored < len(during))


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--window", type=int, default=8, help="W; 0 loads the whole plan")
    parser.add_argument("--rounds", type=int, default=5, help="restores")
    parser.add_argument("--device", choices=DEVICES, default=CPU.name, help="of the client")
    return parser.parse_args()


def main() -> None:
    """Measure all rounds and print what came out."""
    args = parse_args()
    rounds: list[tuple[list[float], list[float]]] = []
    with (
        tempfile.TemporaryDirectory(prefix="store-bench-") as tmp,
        running(args.window, Path(tmp), DEVICES[args.device]) as (server, client),
        ThreadPoolExecutor(1) as pool,
    ):
        for number in range(WARM_UP_ROUNDS + args.rounds):
            server.clear_l1()
            server.wait_released()
            measured = measure(client, pool)
            if number >= WARM_UP_ROUNDS:
                rounds.append(measured)
    sides = [[1000 * each for one in side for each in one] for side in zip(*rounds, strict=True)]
    ratio = statistics.median(
        statistics.median(during) / statistics.median(without) for during, without in rounds
    )
    print(
        f"W={args.window}, {args.device}, {os.cpu_count()} CPUs, {args.rounds} restores, "
        f"{len(sides[0])} stores on each side, in ms"
    )
    for name, latencies in zip(("during", "without"), sides, strict=True):
        print(f"{name:>8} median {statistics.median(latencies):7.1f} max {max(latencies):7.1f}")
    print(f"{'ratio':>8} median {ratio:7.2f}")


if __name__ == "__main__":
    main()
