"""Blocks are handed out once, kept while anybody holds them, and free at once afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.state.block_pool import BlockPool


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
