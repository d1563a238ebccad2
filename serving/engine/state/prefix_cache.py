"""What has been read before: a bounded store of prompts' beginnings, in blocks of tokens.

Prompts with a common beginning (few-shot headers) share its blocks, as in a tree. What a block
holds is the runner's affair; this file knows tokens, bytes and who was used last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

_ROOT = 0
_Key = tuple[int, tuple[int, ...]]  # the parent's number, the block's tokens


class Block(Protocol):
    """State of a block's positions."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


B = TypeVar("B", bound=Block)


class PrefixCache(Generic[B]):
    """Blocks by the tokens that lead to them; the longest unused go first.

    A use renews a chain from its last block to its first, so the oldest block of all is always
    the end of a chain: nothing is ever kept that cannot be reached.

    Args:
        capacity_bytes: What all blocks may hold.
        block_tokens: Tokens of a block.
        min_tokens: Shorter beginnings are neither kept nor found.
    """

    def __init__(self, capacity_bytes: int, block_tokens: int, min_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.min_tokens = min_tokens
        self.nbytes = 0
        self._capacity_bytes = capacity_bytes
        self._blocks: OrderedDict[_Key, tuple[int, B]] = OrderedDict()  # oldest first
        self._next_number = _ROOT + 1

    def __len__(self) -> int:
        return len(self._blocks)

    def opening(self, token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The shortest beginning that another prompt could profit from; None if there is none."""
        least = -(-self.min_tokens // self.block_tokens) * self.block_tokens
        return tuple(token_ids[:least]) if len(token_ids) > least else None

    def count(self, token_ids: Sequence[int]) -> int:
        """Tokens at the prompt's beginning whose state is here; at least one token is left."""
        tokens = len(self._chain(token_ids)) * self.block_tokens
        return tokens if tokens >= self.min_tokens else 0

    def find(self, token_ids: Sequence[int]) -> list[B]:
        """The blocks of the prompt's beginning, first to last; renews them."""
        if not self.count(token_ids):
            return []
        chain = self._chain(token_ids)
        self._renew(chain)
        return [self._blocks[key][1] for key in chain]

    def put(self, token_ids: Sequence[int], cut: Callable[[int, int], B]) -> None:
        """Keeps what a prompt's whole blocks hold.

        Args:
            cut: (start, stop) → the state of these positions; asked only for what is new.
        """
        if len(token_ids) < self.min_tokens:
            return
        keys: list[_Key] = []
        parent = _ROOT
        for start in range(0, len(token_ids) - self.block_tokens + 1, self.block_tokens):
            stop = start + self.block_tokens
            key = (parent, tuple(token_ids[start:stop]))
            if key not in self._blocks:
                block = cut(start, stop)
                if self.nbytes + block.nbytes > self._capacity_bytes and not self._evict(
                    block.nbytes, keys
                ):
                    break
                self._blocks[key] = (self._next_number, block)
                self._next_number += 1
                self.nbytes += block.nbytes
            keys.append(key)
            parent = self._blocks[key][0]
        self._renew(keys)

    def clear(self) -> None:
        """Forgets everything."""
        self._blocks.clear()
        self.nbytes = 0

    def _chain(self, token_ids: Sequence[int]) -> list[_Key]:
        """Keys of the blocks at hand, first to last; the prompt's last token is never among them.

        Something must be left to read, or there would be no scores for what follows.
        """
        keys: list[_Key] = []
        parent = _ROOT
        for start in range(0, len(token_ids) - self.block_tokens, self.block_tokens):
            key = (parent, tuple(token_ids[start : start + self.block_tokens]))
            if key not in self._blocks:
                break
            keys.append(key)
            parent = self._blocks[key][0]
        return keys

    def _renew(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _evict(self, wanted: int, spared: list[_Key]) -> bool:
        """Drops the oldest blocks until so many bytes are free; False when that cannot be."""
        self._renew(spared)
        while self.nbytes + wanted > self._capacity_bytes and len(self._blocks) > len(spared):
            _, (_, block) = self._blocks.popitem(last=False)
            self.nbytes -= block.nbytes
        return self.nbytes + wanted <= self._capacity_bytes
