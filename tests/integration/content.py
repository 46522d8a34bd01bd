"""Bytes of objects that follow from their keys.

An object is a stretch of one long noise, and its key says where the stretch begins:
no two objects, and no two places of an object, hold the same bytes.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_SEED = 20260729
_START_BYTES = 3  # The noise is as much longer than an object as this can count.


class Content:
    """The objects of one size."""

    def __init__(self, object_bytes: int) -> None:
        """Make the noise, the same in every process."""
        self._object_bytes = object_bytes
        length = object_bytes + 256**_START_BYTES
        self._noise: Bytes = np.random.default_rng(_SEED).integers(0, 256, length, np.uint8)

    def of(self, chunk_hash: bytes, kv_rank: int) -> Bytes:
        """Return the bytes of the object of a chunk and a rank, as a view."""
        key = chunk_hash + kv_rank.to_bytes(8, "big")
        digest = hashlib.blake2b(key, digest_size=_START_BYTES).digest()
        start = int.from_bytes(digest, "big")
        made: Bytes = self._noise[start : start + self._object_bytes]
        return made
