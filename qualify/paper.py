"""The figures of the paper, DeepSeek-V4-Flash with MTP off on two ranks."""

from dataclasses import dataclass

CHUNK_BYTES = 16_408_576
WINDOW = 32
WINDOW_MIB = 500.75
LAW_TOKENS = 262_144
FILES_SECONDS = (43.1, 17.6)
FILES_RATIO = 2.45
FILES_CONCURRENCY = 4


@dataclass(frozen=True)
class WholePlan:
    """The smallest L1 with full reuse, and the peak in it; 512K was not completed."""

    tokens: int
    l1_gib: int
    peak_gib: float


LADDER = (
    WholePlan(32_768, 2, 1.956),
    WholePlan(131_072, 8, 7.824),
    WholePlan(262_144, 16, 15.648),
)
SWEEP_TOKENS = (32_768, 65_536, 131_072, 262_144, 393_216, 524_032)
LAW = (8, 16, 32, 64)
