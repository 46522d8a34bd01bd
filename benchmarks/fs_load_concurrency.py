# SPDX-License-Identifier: Apache-2.0
"""Compare the fs L2 adapter's load rate with plain ``preadv`` threads.

For each concurrency C the adapter loads every object of a working set with
``LMCACHE_FS_LOAD_CONCURRENCY=C``, and C plain threads read the same files into
the same buffers.  Printed are the median rates in MiB/s and the median of the pairs' ratios.

A cold run drops the files from the page cache first (``fsync`` and
``POSIX_FADV_DONTNEED``); with ``--odirect`` both sides bypass the page cache.
``--loads`` splits the set over several load tasks that are in flight together.

This measures a machine; it is not a test and never fails on a slow one::

    nox -s benchmark -- fs_load_concurrency --dir /data/l2-bench
"""

from __future__ import annotations

import argparse
import mmap
import os
import select
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import (
    FSL2Adapter,
    FSL2AdapterConfig,
)
from lmcache.v1.platform import consume_fd

from benchmarks.pairs import drop_cache, measure_pairs

ENV = "LMCACHE_FS_LOAD_CONCURRENCY"
MIB = 1 << 20


class Buffer:
    """A page-aligned, resident stand-in for an L1 object."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self._map.write(b"\0" * size)

    @property
    def byte_array(self) -> memoryview:
        """The writable bytes of the object."""
        return memoryview(self._map)


@contextmanager
def open_adapter(base: Path, concurrency: int | None, odirect: bool) -> Iterator[FSL2Adapter]:
    """Yield an adapter over *base* with the given concurrency, and close it.

    Args:
        base: Directory of the object files.
        concurrency: Value of the environment variable; None leaves it unset.
        odirect: Whether the adapter bypasses the page cache.
    """
    os.environ.pop(ENV, None)
    if concurrency is not None:
        os.environ[ENV] = str(concurrency)
    adapter = FSL2Adapter(FSL2AdapterConfig(base_path=str(base), use_odirect=odirect))
    try:
        yield adapter
    finally:
        adapter.close()
        os.environ.pop(ENV, None)


def wait_for(fd: int) -> None:
    """Block until the event descriptor *fd* is signalled, and reset it."""
    select.select([fd], [], [])
    consume_fd(fd)


def load(adapter: FSL2Adapter, keys: list[ObjectKey], buffers: list[Buffer], loads: int) -> float:
    """Load all *keys* as *loads* tasks in flight together.

    Returns:
        Seconds from the first submission to the last result.

    Raises:
        RuntimeError: If an object was not loaded.
    """
    start = time.perf_counter()
    tasks: dict[int, int] = {}
    for n in range(loads):
        part = keys[n::loads]
        objects: list[Any] = [*buffers[n::loads]]  # the adapter asks for no more than a Buffer has
        tasks[adapter.submit_load_task(part, objects)] = len(part)
    while tasks:
        wait_for(adapter.get_load_event_fd())
        for task_id, count in list(tasks.items()):
            bitmap = adapter.query_load_result(task_id)
            if bitmap is None:
                continue
            if bitmap.popcount() != count:
                raise RuntimeError(f"loaded {bitmap.popcount()} of {count} objects")
            del tasks[task_id]
    return time.perf_counter() - start


def read_plain(path: Path, buffer: Buffer, odirect: bool) -> None:
    """Read *path* into *buffer* with ``preadv``.

    Raises:
        RuntimeError: If the file is shorter than the buffer.
    """
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if odirect else 0))
    try:
        view = buffer.byte_array
        done = 0
        while done < len(view):
            count = os.preadv(fd, [view[done:]], done)
            if count == 0:
                raise RuntimeError(f"{path} is short")
            done += count
    finally:
        os.close(fd)


def run_plain(
    pool: ThreadPoolExecutor, paths: list[Path], buffers: list[Buffer], odirect: bool
) -> float:
    """Read all *paths* in *pool* and return the seconds it took."""
    start = time.perf_counter()
    futures = [
        pool.submit(read_plain, path, buffer, odirect)
        for path, buffer in zip(paths, buffers, strict=True)
    ]
    for future in futures:
        future.result()
    return time.perf_counter() - start


def store(adapter: FSL2Adapter, keys: list[ObjectKey], size: int) -> None:
    """Store one object of *size* random bytes for each key.

    Raises:
        RuntimeError: If the adapter reports a failed store.
    """
    source = Buffer(size)
    for key in keys:
        source.byte_array[:] = os.urandom(size)
        objects: list[Any] = [source]
        task = adapter.submit_store_task([key], objects)
        wait_for(adapter.get_store_event_fd())
        if not adapter.pop_completed_store_tasks()[task].is_successful():
            raise RuntimeError("store failed")


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, help="where the files go (default: TMPDIR)")
    parser.add_argument("--objects", type=int, default=32, help="number of objects")
    parser.add_argument("--object-mib", type=float, default=8.0, help="MiB an object")
    parser.add_argument("--concurrency", default="1,2,4,8", help="values of C")
    parser.add_argument("--loads", type=int, default=1, help="load tasks in flight")
    parser.add_argument("--rounds", type=int, default=9, help="pairs per line")
    parser.add_argument("--unset", action="store_true", help="also measure with the variable unset")
    parser.add_argument("--odirect", action="store_true", help="bypass the page cache")
    return parser.parse_args()


def main() -> None:
    """Store the working set, measure every line and print the table."""
    args = parse_args()
    size = int(args.object_mib * MIB) // mmap.PAGESIZE * mmap.PAGESIZE
    total_mib = size * args.objects / MIB
    keys = [
        ObjectKey(chunk_hash=i.to_bytes(8, "big"), model_name="bench", kv_rank=0)
        for i in range(args.objects)
    ]
    values: list[int | None] = [int(value) for value in args.concurrency.split(",")]
    if args.unset:
        values.insert(0, None)
    modes = ["O_DIRECT"] if args.odirect else ["cold", "warm"]
    buffers = [Buffer(size) for _ in keys]

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="fs-load-bench-") as tmp:
        base = Path(tmp)
        with open_adapter(base, None, odirect=False) as adapter:
            store(adapter, keys, size)
        paths = sorted(base.glob("*.data"))
        drop_cache(paths)
        print(
            f"{args.objects} objects of {size / MIB:g} MiB, {args.loads} load(s) in "
            f"flight, {os.cpu_count()} CPUs, medians of {args.rounds} pairs"
        )
        print(f"{'mode':>8} {'C':>5} {'adapter':>9} {'threads':>9} {'ratio':>7}")
        for mode in modes:
            for value in values:
                # Unset, each load in flight reads one object at a time.
                threads = args.loads if value is None else value
                with (
                    open_adapter(base, value, args.odirect) as adapter,
                    ThreadPoolExecutor(threads) as pool,
                ):

                    def adapter_run(adapter: FSL2Adapter = adapter) -> float:
                        return load(adapter, keys, buffers, args.loads)

                    def plain_run(pool: ThreadPoolExecutor = pool) -> float:
                        return run_plain(pool, paths, buffers, args.odirect)

                    def prepare(cold: bool = mode == "cold") -> None:
                        if cold:
                            drop_cache(paths)

                    # The first pair starts the threads.
                    pairs = measure_pairs(plain_run, adapter_run, prepare, args.rounds, warm_up=1)
                name = "unset" if value is None else str(value)
                print(
                    f"{mode:>8} {name:>5} {total_mib / statistics.median(pairs.second):9.0f} "
                    f"{total_mib / statistics.median(pairs.first):9.0f} "
                    f"{pairs.median_ratio():7.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
