"""Blocks of keys and values, and a bounded cache of prompt prefixes.

Prompts with a common prefix share its blocks, as in a tree. A block is used as far as its tokens
are those of the prompt, so the last block of a prefix may be a part of one (D119). The contents of
a block belong to the runner; this file handles tokens, bytes and least-recently-used order.

A block has room for a fixed number of positions of one row, in all layers. Rows of one sequence,
and prompts with a common prefix, hold the same blocks; a block is written by one holder only (D99).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


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


_ROOT = 0
_Tokens = tuple[int, ...]
_Key = tuple[int, _Tokens]  # the parent's number, the block's tokens


class Block(Protocol):
    """State of a block's positions."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    def release(self) -> None:
        """Gives up what it holds."""


B = TypeVar("B", bound=Block)


@dataclass(frozen=True)
class CachedPrefix(Generic[B]):
    """What a cache has of a prompt.

    Attributes:
        blocks: First to last.
        tokens: Positions of them that are the prompt's; of the last block perhaps a part.
    """

    blocks: Sequence[B] = ()
    tokens: int = 0


class PrefixCache(Generic[B]):
    """Blocks by the tokens that lead to them; the least recently used are evicted first.

    Blocks behind the same parent differ, and none begins with all tokens of another, so the one
    that shares the most tokens with a prompt is a neighbour of the prompt's in their order.

    A use renews a chain from its last block to its first, so the oldest block is always the end of
    a chain: no unreachable block is kept.

    Args:
        capacity_bytes: Bound on the bytes of all blocks.
        block_tokens: Tokens of a block; the last one of a chain may have fewer.
        min_tokens: Shorter prefixes are neither stored nor found.
    """

    def __init__(self, capacity_bytes: int, block_tokens: int, min_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.min_tokens = min_tokens
        self.nbytes = 0
        self._capacity_bytes = capacity_bytes
        self._blocks: OrderedDict[_Key, tuple[int, B]] = OrderedDict()  # oldest first
        self._children: dict[int, list[_Tokens]] = {}  # by the parent's number, sorted
        self._next_number = _ROOT + 1

    def __len__(self) -> int:
        return len(self._blocks)

    def shareable_prefix(self, token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The shortest prefix that another prompt could reuse; None if the prompt is too short."""
        least = -(-self.min_tokens // self.block_tokens) * self.block_tokens
        return tuple(token_ids[:least]) if len(token_ids) > least else None

    def cached_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens of the prompt's prefix that are cached; at least its last token is not."""
        _, tokens = self._chain(token_ids)
        return tokens if tokens >= self.min_tokens else 0

    def find(self, token_ids: Sequence[int]) -> CachedPrefix[B]:
        """What is cached of the prompt; marks it as used."""
        chain, tokens = self._chain(token_ids)
        if tokens < self.min_tokens:
            return CachedPrefix()
        self._renew(chain)
        return CachedPrefix([self._blocks[key][1] for key in chain], tokens)

    def put(
        self,
        token_ids: Sequence[int],
        copy_block: Callable[[int, int], B],
        *,
        has_rest: bool = False,
    ) -> None:
        """Stores the whole blocks of a prompt.

        Args:
            copy_block: (start, stop) → the state of these positions; called for new blocks only.
            has_rest: Whether the tokens behind the last whole block are stored too.
        """
        if len(token_ids) < self.min_tokens:
            return
        keys: list[_Key] = []
        parent = _ROOT
        stored = len(token_ids) if has_rest else len(token_ids) - self.block_tokens + 1
        for start in range(0, stored, self.block_tokens):
            tokens = tuple(token_ids[start : start + self.block_tokens])
            key = self._find_holding(parent, tokens)
            if key is None:
                block = copy_block(start, start + len(tokens))
                key = parent, tokens
                if not self._insert(key, block, keys):
                    break
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
        self._drop(next(iter(self._blocks)))
        return True

    def _chain(self, token_ids: Sequence[int]) -> tuple[list[_Key], int]:
        """Keys of the cached blocks, first to last, and the prompt's tokens that are in them.

        At least one token must be prefilled, or there would be no logits.
        """
        keys: list[_Key] = []
        parent, start, stop = _ROOT, 0, len(token_ids) - 1
        while start < stop:
            tokens = tuple(token_ids[start : min(start + self.block_tokens, stop)])
            nearest, common = self._nearest(parent, tokens)
            if not common:
                break
            keys.append((parent, nearest))
            start += common
            if common < self.block_tokens:
                break
            parent = self._blocks[keys[-1]][0]
        return keys, start

    def _nearest(self, parent: int, tokens: _Tokens) -> tuple[_Tokens, int]:
        """The block behind a parent that begins with the most of these tokens, and how many."""
        if (parent, tokens) in self._blocks:
            return tokens, len(tokens)
        found: tuple[_Tokens, int] = (), 0
        children = self._children.get(parent, ())
        place = bisect_left(children, tokens)
        for child in children[max(0, place - 1) : place + 1]:
            common = _common(child, tokens)
            if common > found[1]:
                found = child, common
        return found

    def _find_holding(self, parent: int, tokens: _Tokens) -> _Key | None:
        """The block behind a parent that begins with all of these tokens."""
        nearest, common = self._nearest(parent, tokens)
        return (parent, nearest) if common == len(tokens) else None

    def _insert(self, key: _Key, block: B, spared: list[_Key]) -> bool:
        """Stores a block in place of one that it continues, if there is room.

        Returns:
            Whether there was; else the block is released.
        """
        if self.nbytes + block.nbytes > self._capacity_bytes and not self._make_room(
            block.nbytes, spared
        ):
            block.release()
            return False
        parent, tokens = key
        children = self._children.setdefault(parent, [])
        before = bisect_left(children, tokens) - 1
        if before >= 0 and _common(children[before], tokens) == len(children[before]):
            self._drop((parent, children[before]))
            children = self._children.setdefault(parent, [])
        insort(children, tokens)
        self._blocks[key] = (self._next_number, block)
        self._next_number += 1
        self.nbytes += block.nbytes
        return True

    def _drop(self, key: _Key) -> None:
        """Drops a block that none is behind."""
        _, block = self._blocks.pop(key)
        parent, tokens = key
        children = self._children[parent]
        del children[bisect_left(children, tokens)]
        if not children:
            del self._children[parent]
        self.nbytes -= block.nbytes
        block.release()

    def _renew(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _make_room(self, wanted: int, spared: list[_Key]) -> bool:
        """Evicts the oldest blocks until `wanted` bytes are free; returns whether they are."""
        self._renew(spared)
        while self.nbytes + wanted > self._capacity_bytes and len(self._blocks) > len(spared):
            self.evict()
        return self.nbytes + wanted <= self._capacity_bytes


def _common(one: _Tokens, other: _Tokens) -> int:
    """Tokens that two begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
