"""What a worker's KV cache holds, as values that tell right from wrong.

A slot holds the tokens that its KV was computed from, as a hash of the whole
prefix, or WRONG. A token computed from a wrong slot makes a wrong slot itself,
and a wrong sample, exactly as in a model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WRONG = -1
NULL_BLOCK = 0

Tables = Sequence[Sequence[int]]


def prefix_values(tokens: Sequence[int]) -> list[int]:
    """Return the right value of every position of these tokens."""
    values, value = [], 0
    for token in tokens:
        value = hash((value, token)) & 0x7FFF_FFFF
        values.append(value)
    return values


@dataclass(frozen=True)
class Groups:
    """KV cache groups: the window of each in tokens, None for full attention."""

    windows: tuple[int | None, ...]
    block_size: int

    def first_attended(self, group: int, position: int) -> int:
        """Return the first position that the token at `position` attends to."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)


class KVMemory:
    """The slots of all blocks; one pool serves all groups."""

    def __init__(self, num_blocks: int, groups: Groups) -> None:
        """Start with slots that hold nothing of use."""
        self._groups = groups
        size = groups.block_size
        self._slots = [[WRONG] * size for _ in range(num_blocks)]

    def block(self, block_id: int) -> list[int]:
        """Return the slots of one block."""
        return self._slots[block_id]

    def spoil(self, block_ids: Iterable[int]) -> None:
        """Make every slot of these blocks wrong."""
        for block_id in block_ids:
            self._slots[block_id] = [WRONG] * self._groups.block_size

    def write(self, tables: Tables, start: int, end: int, values: Sequence[int]) -> None:
        """Write the positions from start to end in every group; values has all positions."""
        for table in tables:
            for position in range(start, end):
                self._write_slot(table, position, values[position])

    def compute(self, tables: Tables, start: int, end: int, values: Sequence[int]) -> bool:
        """Compute the positions from start to end; return whether they came out right."""
        right = self._reads_right(tables, start, values)
        self.write(tables, start, end, values if right else [WRONG] * end)
        return right

    def _reads_right(self, tables: Tables, position: int, values: Sequence[int]) -> bool:
        """Whether all that the token at this position attends to is right."""
        size = self._groups.block_size
        return all(
            self._slots[table[read // size]][read % size] == values[read]
            for group, table in enumerate(tables)
            for read in range(self._groups.first_attended(group, position), position)
        )

    def _write_slot(self, table: Sequence[int], position: int, value: int) -> None:
        block_id = table[position // self._groups.block_size]
        if block_id != NULL_BLOCK:
            self._slots[block_id][position % self._groups.block_size] = value
