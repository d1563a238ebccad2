"""Blocks of keys and values: which are free, and how many sequences hold each.

A block has room for a fixed number of positions of one row, in all layers. Rows of one sequence,
and prompts with a common prefix, hold the same blocks; a block is written by one holder only (D99).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BlockPool:
    """Numbers of blocks with their counts of holders.

    Released numbers are handed out again before new ones, so that memory is used densely.

    Args:
        block_tokens: Positions of a block.
        block_bytes: Of all layers together.
        limit: Blocks that may be held at a time; the engine sets it to what its memory holds.

    Attributes:
        used: Blocks that are held.
    """

    def __init__(self, block_tokens: int, block_bytes: int, limit: int = 1 << 20) -> None:
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.limit = limit
        self.used = 0
        self._holders: list[int] = []  # numbers of a list are read in a third of an array's time
        self._free: list[int] = []

    def __len__(self) -> int:
        """Numbers that were ever handed out: the blocks that need memory."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """Blocks that can be allocated."""
        return self.limit - self.used

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many positions."""
        return -(-tokens // self.block_tokens)

    def allocate(self, count: int) -> list[int]:
        """Blocks with one holder; their contents are whatever was there.

        Raises:
            MemoryError: fewer are free; nothing is allocated.
        """
        if count > self.free:
            raise MemoryError(f"{count} blocks of keys and values are needed, {self.free} are free")
        if count > len(self._free):
            self._add_numbers(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        self.used += count
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a holder to each; no block twice."""
        for block in blocks:
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Removes a holder from each; blocks without holders are free at once."""
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)
                self.used -= 1

    def is_shared(self, block: int) -> bool:
        """Whether a block has several holders, and must be copied before it is written."""
        return self._holders[block] > 1

    def _add_numbers(self, count: int) -> None:
        start = len(self._holders)
        added = max(count, start)  # doubled, so that memory is moved a few times at most
        stop = min(start + added, max(self.limit, start + count))
        self._holders += [0] * (stop - start)
        self._free = [*range(stop - 1, start - 1, -1), *self._free]

    def reset(self) -> None:
        """Forgets all numbers; none is held."""
        assert not self.used
        self._holders, self._free = [], []
