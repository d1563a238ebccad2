"""Blocks and the prefix cache: hits match stored prompts, and limits hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.state.prefix_cache import BlockPool, PrefixCache


def test_blocks_have_one_holder_until_they_are_shared() -> None:
    pool = BlockPool(32, 100, limit=8)
    first = pool.allocate(3)
    assert len(set(first)) == 3
    assert not any(map(pool.is_shared, first))
    pool.share(first[:2])
    assert [pool.is_shared(block) for block in first] == [True, True, False]
    pool.release(first)
    assert pool.used == 2
    assert not any(map(pool.is_shared, first[:2]))


def test_a_pool_without_enough_blocks_gives_none() -> None:
    pool = BlockPool(32, 100, limit=4)
    pool.allocate(3)
    with pytest.raises(MemoryError, match="2 blocks of keys and values are needed, 1 are free"):
        pool.allocate(2)
    assert (pool.used, pool.free) == (3, 1)


def test_numbers_stay_dense() -> None:
    pool = BlockPool(32, 100, limit=1000)
    held = pool.allocate(5)
    for _ in range(50):
        pool.release(held)
        held = pool.allocate(5)
    assert len(pool) == 5


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2)])
def test_blocks_hold_whole_multiples(tokens: int, blocks: int) -> None:
    assert BlockPool(32, 100).blocks_of(tokens) == blocks


@given(st.lists(st.tuples(st.sampled_from("asr"), st.integers(0, 5)), max_size=60))
def test_counts_are_those_of_a_dictionary(steps: list[tuple[str, int]]) -> None:
    pool, holders = BlockPool(32, 100, limit=20), dict[int, int]()
    for kind, number in steps:
        held = sorted(holders)[:number]
        if kind == "a" and number <= pool.free:
            fresh = pool.allocate(number)
            assert not set(fresh) & set(holders)
            holders |= dict.fromkeys(fresh, 1)
        elif kind == "s":
            pool.share(held)
            holders |= {block: holders[block] + 1 for block in held}
        elif kind == "r":
            pool.release(held)
            holders |= {block: holders[block] - 1 for block in held}
            holders = {block: count for block, count in holders.items() if count}
        assert pool.used == len(holders)
        assert all(pool.is_shared(block) == (count > 1) for block, count in holders.items())


@dataclass(frozen=True)
class Tokens:
    """A block that records its tokens."""

    ids: tuple[int, ...]
    nbytes: int = 10
    released: list[tuple[int, ...]] = field(default_factory=list)

    def release(self) -> None:
        self.released.append(self.ids)


def store(capacity_bytes: int = 1000, min_tokens: int = 4) -> PrefixCache[Tokens]:
    return PrefixCache(capacity_bytes, 4, min_tokens)


def put(
    prefixes: PrefixCache[Tokens], ids: tuple[int, ...], *, has_rest: bool = False
) -> list[tuple[int, int]]:
    """Stores a prompt; returns the ranges that were copied."""
    cuts = []

    def cut(start: int, stop: int) -> Tokens:
        cuts.append((start, stop))
        return Tokens(ids[:stop])

    prefixes.put(ids, cut, has_rest=has_rest)
    return cuts


def test_common_prefix_is_stored_once() -> None:
    prefixes = store()
    header = tuple(range(8))
    assert put(prefixes, (*header, 20, 21, 22, 23)) == [(0, 4), (4, 8), (8, 12)]
    assert put(prefixes, (*header, 30, 31, 32, 33)) == [(8, 12)]
    assert prefixes.nbytes == 40
    found = prefixes.find((*header, 5))
    assert [block.ids for block in found.blocks] == [header[:4], header]
    assert found.tokens == 8


def test_at_least_one_token_is_prefilled() -> None:
    prefixes = store()
    put(prefixes, tuple(range(8)))
    assert prefixes.cached_tokens(tuple(range(8))) == 7
    assert prefixes.cached_tokens(tuple(range(9))) == 8


def test_short_prefixes_are_neither_stored_nor_found() -> None:
    prefixes = store(min_tokens=8)
    assert put(prefixes, (1, 2, 3, 4)) == []
    put(prefixes, (1, 2, 3, 4, 5, 6, 7, 8))
    assert prefixes.cached_tokens((1, 2, 3, 4, 9, 9, 9, 9, 9)) == 0
    assert prefixes.shareable_prefix((1, 2, 3, 4, 5, 6, 7, 8)) is None
    assert prefixes.shareable_prefix((1, 2, 3, 4, 5, 6, 7, 8, 9)) == (1, 2, 3, 4, 5, 6, 7, 8)


def test_most_recently_used_prefix_stays() -> None:
    prefixes = store(capacity_bytes=20)
    put(prefixes, (1, 1, 1, 1))
    put(prefixes, (2, 2, 2, 2))
    prefixes.find((1, 1, 1, 1, 9))
    put(prefixes, (3, 3, 3, 3))
    assert prefixes.cached_tokens((1, 1, 1, 1, 9)) == 4
    assert prefixes.cached_tokens((2, 2, 2, 2, 9)) == 0


def test_every_block_that_leaves_the_cache_is_released_once() -> None:
    prefixes, released = store(capacity_bytes=20), list[tuple[int, ...]]()
    for ids in ((1,) * 4, (2,) * 4, (3,) * 16):
        prefixes.put(ids, lambda start, stop, ids=ids: Tokens(ids[:stop], released=released))
    assert released == [(1,) * 4, (2,) * 4, (3,) * 12]  # evicted twice, then not taken
    prefixes.clear()
    assert sorted(released[3:]) == [(3,) * 4, (3,) * 8]
    assert prefixes.nbytes == 0


def test_prompt_larger_than_the_cache_keeps_its_prefix() -> None:
    prefixes = store(capacity_bytes=20)
    put(prefixes, (9, 9, 9, 9))
    put(prefixes, tuple(range(16)))
    assert prefixes.cached_tokens(tuple(range(16))) == 8
    assert prefixes.nbytes == 20


def test_a_block_is_used_as_far_as_its_tokens_are_those_of_the_prompt() -> None:
    prefixes = store()
    put(prefixes, (1, 2, 3, 4, 5, 6, 7, 8))
    assert prefixes.cached_tokens((1, 2, 3, 4, 5, 6, 9)) == 6
    assert prefixes.cached_tokens((1, 2, 9)) == 0  # fewer than the least
    put(prefixes, (1, 2, 3, 4, 5, 7, 1, 1))
    found = prefixes.find((1, 2, 3, 4, 5, 7, 1, 9))
    assert ([block.ids for block in found.blocks][-1], found.tokens) == (
        (1, 2, 3, 4, 5, 7, 1, 1),
        7,
    )


def test_the_rest_of_a_prompt_is_kept_until_a_block_continues_it() -> None:
    prefixes, released = store(), list[tuple[int, ...]]()

    def keep(ids: tuple[int, ...]) -> None:
        def cut(start: int, stop: int) -> Tokens:
            return Tokens(ids[:stop], released=released)

        prefixes.put(ids, cut, has_rest=True)

    keep((1, 2, 3, 4, 5))
    assert len(prefixes) == 2
    assert prefixes.cached_tokens((1, 2, 3, 4, 5, 6)) == 5
    keep((1, 2, 3, 4, 5, 6, 7))
    assert released == [(1, 2, 3, 4, 5)]
    keep((1, 2, 3, 4, 5, 6))  # is in the cache
    keep((1, 2, 3, 4, 5, 9))
    assert (len(prefixes), released) == (3, [(1, 2, 3, 4, 5)])
    keep((1, 2, 3, 4, 5, 6, 7, 8))
    assert released[1:] == [(1, 2, 3, 4, 5, 6, 7)]
    assert prefixes.nbytes == 30
    assert prefixes.cached_tokens((1, 2, 3, 4, 5, 6, 7, 8, 9)) == 8
    assert prefixes.cached_tokens((1, 2, 3, 4, 5, 9, 9)) == 6


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that two begin with alike."""
    return next((n for n in range(min(len(one), len(other)), 0, -1) if one[:n] == other[:n]), 0)


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=20).map(tuple), st.booleans()), max_size=40
)


@given(prompts=prompts)
def test_the_longest_stored_prefix_is_found(prompts: list[tuple[tuple[int, ...], bool]]) -> None:
    prefixes, stored = store(1 << 20), list[tuple[int, ...]]()
    for ids, has_rest in prompts:
        longest = max((common(ids[:-1], other) for other in stored), default=0)
        assert prefixes.cached_tokens(ids) == (longest if longest >= 4 else 0)
        put(prefixes, ids, has_rest=has_rest)
        if len(ids) >= 4:
            stored.append(ids if has_rest else ids[: len(ids) // 4 * 4])


@given(prompts=prompts, capacity=st.integers(0, 120))
def test_hits_return_the_stored_prefix(
    prompts: list[tuple[tuple[int, ...], bool]], capacity: int
) -> None:
    prefixes, made, released = store(capacity), 0, list[tuple[int, ...]]()
    for ids, has_rest in prompts:
        found = prefixes.find(ids)
        assert prefixes.cached_tokens(ids) == found.tokens < max(len(ids), 1)
        *whole, last = [block.ids for block in found.blocks] or [()]
        assert whole == [ids[: 4 * (place + 1)] for place in range(len(whole))]
        assert 4 * len(whole) < found.tokens <= 4 * len(found.blocks) or not found.tokens
        assert last[: found.tokens] == ids[: found.tokens]

        def cut(start: int, stop: int, ids: tuple[int, ...] = ids) -> Tokens:
            nonlocal made
            made += 1
            return Tokens(ids[:stop], released=released)

        prefixes.put(ids, cut, has_rest=has_rest)
        assert prefixes.nbytes == 10 * len(prefixes) <= capacity
        assert made == len(prefixes) + len(released)
        kept = min(len(ids) // 4, capacity // 10)
        assert prefixes.cached_tokens((*ids, 0)) >= 4 * kept
    prefixes.clear()
    assert (made, prefixes.nbytes) == (len(released), 0)
