"""The prefix cache: hits match stored prompts, and the size limit holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.state.prefix_cache import PrefixCache


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


def put(prefixes: PrefixCache[Tokens], ids: tuple[int, ...]) -> list[tuple[int, int]]:
    """Stores a prompt; returns the ranges that were copied."""
    cuts = []

    def cut(start: int, stop: int) -> Tokens:
        cuts.append((start, stop))
        return Tokens(ids[:stop])

    prefixes.put(ids, cut)
    return cuts


def test_common_prefix_is_stored_once() -> None:
    prefixes = store()
    header = tuple(range(8))
    assert put(prefixes, (*header, 20, 21, 22, 23)) == [(0, 4), (4, 8), (8, 12)]
    assert put(prefixes, (*header, 30, 31, 32, 33)) == [(8, 12)]
    assert prefixes.nbytes == 40
    assert [block.ids for block in prefixes.find((*header, 5))] == [header[:4], header]


def test_at_least_one_token_is_prefilled() -> None:
    prefixes = store()
    put(prefixes, tuple(range(8)))
    assert prefixes.cached_tokens(tuple(range(8))) == 4
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


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), max_size=20).map(tuple), max_size=40),
    capacity=st.integers(0, 120),
)
def test_hits_return_the_stored_prefix(prompts: list[tuple[int, ...]], capacity: int) -> None:
    prefixes = store(capacity)
    for ids in prompts:
        found = prefixes.find(ids)
        assert [block.ids for block in found] == [ids[: 4 * (i + 1)] for i in range(len(found))]
        assert prefixes.cached_tokens(ids) == 4 * len(found) < max(len(ids), 1)
        put(prefixes, ids)
        assert prefixes.nbytes == 10 * len(prefixes) <= capacity
        whole = min(len(ids) // 4, capacity // 10)
        assert prefixes.cached_tokens((*ids, 0)) >= 4 * whole
