"""A bounded cache of prompt prefixes, in blocks of tokens.

Prompts with a common prefix share its blocks, as in a tree. The contents of a block belong to the
runner; this file handles tokens, bytes and least-recently-used order.
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

    def release(self) -> None:
        """Gives up what it holds."""
        ...


B = TypeVar("B", bound=Block)


class PrefixCache(Generic[B]):
    """Blocks by the tokens that lead to them; the least recently used are evicted first.

    A use renews a chain from its last block to its first, so the oldest block is always the end of
    a chain: no unreachable block is kept.

    Args:
        capacity_bytes: Bound on the bytes of all blocks.
        block_tokens: Tokens of a block.
        min_tokens: Shorter prefixes are neither stored nor found.
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

    def shareable_prefix(self, token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The shortest prefix that another prompt could reuse; None if the prompt is too short."""
        least = -(-self.min_tokens // self.block_tokens) * self.block_tokens
        return tuple(token_ids[:least]) if len(token_ids) > least else None

    def cached_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens of the prompt's prefix that are cached; at least its last token is not."""
        tokens = len(self._chain(token_ids)) * self.block_tokens
        return tokens if tokens >= self.min_tokens else 0

    def find(self, token_ids: Sequence[int]) -> list[B]:
        """The cached blocks of the prompt's prefix, first to last; marks them as used."""
        if not self.cached_tokens(token_ids):
            return []
        chain = self._chain(token_ids)
        self._renew(chain)
        return [self._blocks[key][1] for key in chain]

    def put(self, token_ids: Sequence[int], copy_block: Callable[[int, int], B]) -> None:
        """Stores the whole blocks of a prompt.

        Args:
            copy_block: (start, stop) → the state of these positions; called for new blocks only.
        """
        if len(token_ids) < self.min_tokens:
            return
        keys: list[_Key] = []
        parent = _ROOT
        for start in range(0, len(token_ids) - self.block_tokens + 1, self.block_tokens):
            stop = start + self.block_tokens
            key = (parent, tuple(token_ids[start:stop]))
            if key not in self._blocks:
                block = copy_block(start, stop)
                if self.nbytes + block.nbytes > self._capacity_bytes and not self._make_room(
                    block.nbytes, keys
                ):
                    block.release()
                    break
                self._blocks[key] = (self._next_number, block)
                self._next_number += 1
                self.nbytes += block.nbytes
            keys.append(key)
            parent = self._blocks[key][0]
        self._renew(keys)

    def clear(self) -> None:
        """Drops all blocks."""
        while self.evict():
            pass

    def evict(self) -> bool:
        """Drops the least recently used block; returns whether there was one."""
        if not self._blocks:
            return False
        _, (_, block) = self._blocks.popitem(last=False)
        self.nbytes -= block.nbytes
        block.release()
        return True

    def _chain(self, token_ids: Sequence[int]) -> list[_Key]:
        """Keys of the cached blocks, first to last; the prompt's last token is never in them.

        At least one token must be prefilled, or there would be no logits.
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

    def _make_room(self, wanted: int, spared: list[_Key]) -> bool:
        """Evicts the oldest blocks until `wanted` bytes are free; returns whether they are."""
        self._renew(spared)
        while self.nbytes + wanted > self._capacity_bytes and len(self._blocks) > len(spared):
            self.evict()
        return self.nbytes + wanted <= self._capacity_bytes
