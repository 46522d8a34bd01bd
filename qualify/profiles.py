"""At which sizes the experiments run."""

from dataclasses import dataclass

from tests.integration.units import GIB


@dataclass(frozen=True)
class EngineSizes:
    """For the real engine, in chunks.

    Attributes:
        ladder: states for whole plans. rungs: the sizes of L1 they are tried with.
        sweep: states that one server restores with windows of `window` chunks.
        law: values of W for the state of `law_state` chunks.
        recomputed: the state whose restore is compared with computing its prompt.
    """

    ladder: tuple[int, ...]
    rungs: tuple[int, ...]
    window: int
    sweep: tuple[int, ...]
    law: tuple[int, ...]
    law_state: int
    recomputed: int
    recompute_pairs: int


@dataclass(frozen=True)
class PaperSizes:
    """For the client without a model at the paper's geometry.

    Attributes:
        ladder: states in chunks, each with the sizes of L1 that it is tried with.
        window: W of the sweep. sweep: its states in chunks.
        law: values of W. law_state: their state.
    """

    ladder: tuple[tuple[int, tuple[int, ...]], ...]
    window: int
    sweep: tuple[int, ...]
    law: tuple[int, ...]
    law_state: int


@dataclass(frozen=True)
class FileSizes:
    """For the client without a model over real files.

    Attributes:
        chunks: of the state, 8 MiB each. window: W.
        concurrency: files read at once, the first beside each other one.
        latency: seconds before each read of the slow storage.
        pairs: of runs per row. slow_pairs: on the slow storage.
    """

    chunks: int
    window: int
    concurrency: tuple[int, ...]
    latency: float
    pairs: int
    slow_pairs: int
    windows: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """All sizes."""

    name: str
    engine: EngineSizes
    paper: PaperSizes
    files: FileSizes
    failing_chunks: int


SMOKE = Profile(
    "smoke",
    EngineSizes(
        ladder=(8, 16, 32),
        rungs=(4, 8, 16, 32),
        window=4,
        sweep=(4, 8, 16, 32, 64, 128),
        law=(8, 16, 32, 64),
        law_state=128,
        recomputed=64,
        recompute_pairs=3,
    ),
    PaperSizes(ladder=(), window=32, sweep=(64, 128), law=(), law_state=0),
    FileSizes(
        chunks=16,
        window=8,
        concurrency=(1, 4),
        latency=0.1,
        pairs=3,
        slow_pairs=2,
        windows=(8,),
    ),
    failing_chunks=24,
)

FULL = Profile(
    "full",
    EngineSizes(
        ladder=(64, 128, 256),
        rungs=(32, 64, 127, 128, 255, 256),
        window=8,
        sweep=(8, 16, 32, 64, 128, 256, 257),
        law=(8, 16, 32, 64),
        law_state=256,
        recomputed=128,
        recompute_pairs=5,
    ),
    PaperSizes(
        ladder=(
            (128, (GIB, 2 * GIB)),
            (512, (4 * GIB, 8 * GIB)),
            (1024, (8 * GIB, 16 * GIB)),
        ),
        window=32,
        sweep=(128, 256, 512, 1024, 1536, 2047),
        law=(8, 16, 64),
        law_state=1024,
    ),
    FileSizes(
        chunks=32,
        window=8,
        concurrency=(1, 4, 8),
        latency=0.1,
        pairs=9,
        slow_pairs=3,
        windows=(2, 8, 32),
    ),
    failing_chunks=24,
)

PROFILES = {profile.name: profile for profile in (SMOKE, FULL)}
