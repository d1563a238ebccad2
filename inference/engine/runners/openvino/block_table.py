"""The blocks of one row, in the order of its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.state.block_pool import BlockPool


@dataclass(frozen=True, eq=False)
class SharedBlocks:
    """Blocks of a prompt, kept for others that begin alike; the last one may be in part."""

    blocks: tuple[int, ...]
    pool: BlockPool

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, which others may hold too."""
        return len(self.blocks) * self.pool.block_bytes

    def release(self) -> None:
        """Gives the blocks up."""
        self.pool.release(self.blocks)


class BlockTable:
    """Blocks of a row, whole ones first.

    Attributes:
        blocks: Numbers in the pool.
    """

    def __init__(self, pool: BlockPool, shared: Sequence[int] = ()) -> None:
        self._pool = pool
        self.blocks = list(shared)
        pool.share(self.blocks)

    def missing(self, length: int, added: int) -> int:
        """Blocks that must be allocated before `added` positions are written behind `length`."""
        needed = self._pool.blocks_of(length + added) - len(self.blocks)
        return max(0, needed) + self._must_copy(length)

    def extend(self, length: int, added: int) -> list[tuple[int, int]]:
        """Makes room for `added` positions behind `length`, in blocks that no other row holds.

        Returns:
            (source, target): blocks whose contents must be copied before they are written.

        Raises:
            MemoryError: too few blocks are free; the table is as it was.
        """
        missing = self.missing(length, added)
        if not missing:
            return []
        taken = self._pool.allocate(missing)
        copies = []
        if self._must_copy(length):
            place = length // self._pool.block_tokens
            shared = self.blocks[place]
            copies.append((shared, taken[0]))
            self._pool.release([shared])
            self.blocks[place] = taken.pop(0)
        self.blocks += taken
        return copies

    def adopt(self, other: BlockTable) -> None:
        """Gives its blocks up for those of another row, which both hold then."""
        self._pool.share(other.blocks)
        self._pool.release(self.blocks)
        self.blocks = list(other.blocks)

    def shorten(self, length: int) -> None:
        """Gives up blocks behind so many positions."""
        kept = self._pool.blocks_of(length)
        self._pool.release(self.blocks[kept:])
        del self.blocks[kept:]

    def release(self) -> None:
        """Gives all blocks up."""
        self._pool.release(self.blocks)
        self.blocks = []

    def _must_copy(self, length: int) -> bool:
        """Whether the next position lies in a block that another row holds too."""
        place = length // self._pool.block_tokens
        return place < len(self.blocks) and self._pool.is_shared(self.blocks[place])
