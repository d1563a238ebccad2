"""Blocks of keys and values: their memory, and those of one row in order.

Legend: G key and value heads, K width of a head as the runtime stores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from inference.engine.state.prefix_cache import BlockPool


class BlockMemory:
    """Tensors (blocks, G, positions, K) for all blocks that the pool has handed out.

    Args:
        step: A compiled decoder; its inputs `key_cache.i` and `value_cache.i` say what a block is.

    Attributes:
        pool: Numbers of blocks.
        version: Changes whenever the tensors move.
    """

    def __init__(self, step: Any) -> None:
        ports = {port.any_name: port for port in step.inputs if "_cache." in port.any_name}
        self._types = {name: port.element_type for name, port in ports.items()}
        self._shapes = {
            name: [size.get_length() for size in list(port.partial_shape)[1:]]
            for name, port in ports.items()
        }
        sizes = (prod(shape) * self._types[name].size for name, shape in self._shapes.items())
        # positions of a block: values of 8 bits have their scales behind each of them
        tokens = next(shape[1] for name, shape in self._shapes.items() if name.startswith("value"))
        self.pool = BlockPool(tokens, sum(sizes))
        self.version = 0
        self._blocks = 0
        self._tensors: dict[str, NDArray[Any]] = {}
        self._resize(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks that have numbers."""
        return self._blocks * self.pool.block_bytes

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """The memory of all blocks that have numbers, by the names of the inputs."""
        if len(self.pool) > self._blocks:
            self._resize(len(self.pool))
        return self._tensors

    def inputs(self) -> dict[str, openvino.Tensor]:
        """The same as inputs of `step`; they share the memory."""
        return {
            name: openvino.Tensor(tensor, openvino.Shape(tensor.shape), self._types[name])
            for name, tensor in self.tensors().items()
        }

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, from the first of each pair to the second; no target is a source."""
        for source, target in pairs:
            for tensor in self.tensors().values():
                tensor[target] = tensor[source]

    def trim(self) -> None:
        """Frees the memory while no block is held."""
        if not self.pool.used:
            self.pool.reset()
            self._resize(0)

    def _resize(self, blocks: int) -> None:
        """Moves all blocks to memory for so many; pages that are never touched take none."""
        self.version += 1
        for name, shape in self._shapes.items():
            grown = np.zeros((max(blocks, 1), *shape), self._types[name].to_dtype())
            if self._blocks and blocks:
                grown[: self._blocks] = self._tensors[name]
            self._tensors[name] = grown
        self._blocks = blocks


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
