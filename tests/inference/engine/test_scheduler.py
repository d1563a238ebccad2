"""Order of admission, within rows, memory and tokens; blocks and the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Bundle, Limits
from inference.engine.engine import EngineCore, decode
from inference.engine.request import EngineRequest, Event
from inference.engine.runner_factory import check_memory
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity, Scheduler
from inference.engine.sequence import SequenceState
from inference.engine.state.prefix_cache import BlockPool, CachedPrefix, PrefixCache
from inference.errors import BundleError, InvalidRequest, TooLong
from inference.generation import Finished, Generation
from tests.inference.engine.fake_runner import FakeRunner, finish, hashed_logits
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import language_bundle

LOGITS = hashed_logits(20)
RULES = Generation(pad_token_id=0, decoder_start_ids=(0,), max_new_tokens=4)


def sequence(prompt: int = 1, width: int = 1, priority: int = 0, source: int = 0) -> SequenceState:
    rules = RULES.model_copy(update={"num_beams": width, "decoder_start_ids": ()})
    ids = np.full(source, 3) if source else None
    request = EngineRequest(rules, ids, prompt_ids=(2,) * prompt, priority=priority)
    return SequenceState(request, lambda event: None)


class Queue(Scheduler):
    def __init__(self, *waiting: SequenceState, takes_chunks: bool = False) -> None:
        runner = FakeRunner(LOGITS, 20, takes_chunks=takes_chunks)
        super().__init__(runner, Capacity(chunk_tokens=10))
        for one in waiting:
            self.add(one, now_s=0)

    def take(self, tokens: int = 100, *, is_fresh: bool = True) -> list[SequenceState]:
        """The sequences of the next batch."""
        batch = self.next_batch(tokens, is_fresh=is_fresh)
        return batch.sequences if batch else []


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(0, 300)), min_size=1, max_size=30))
def test_priority_is_a_head_start_of_a_second_a_step(requests: list[tuple[int, int]]) -> None:
    scheduler = Queue()
    starts = {}
    for priority, arrival_s in sorted(requests, key=lambda request: request[1]):
        one = sequence(priority=priority)
        starts[one] = arrival_s - priority
        scheduler.add(one, arrival_s)
    order = []
    while found := scheduler.take(1):
        order += found
    assert order == sorted(starts, key=starts.__getitem__)


def test_lowest_priority_is_served_beside_a_stream_of_the_highest() -> None:
    scheduler, waits = Queue(), sequence(priority=-100)
    scheduler.add(waits, 0)
    for now_s in range(300):
        scheduler.add(sequence(priority=100), now_s)
        if waits in scheduler.take(1):
            break
    assert now_s == 200


def test_admitted_batch_shares_the_width_and_the_budget() -> None:
    head, wide, like, large, small = (
        sequence(8), sequence(8, width=2), sequence(8), sequence(40), sequence(1)
    )  # fmt: skip
    scheduler = Queue(head, wide, like, large, small)
    batch = scheduler.next_batch(16, is_fresh=True)
    assert (batch.sequences, batch.tokens, batch.is_chunked) == ([head, like], 16, False)
    assert scheduler.take(16) == [wide]


def test_batch_is_of_similar_lengths() -> None:
    lengths = (12, 100, 20, 90, 16, 110, 14, 96)
    waiting = [sequence(length) for length in lengths]
    scheduler = Queue(*waiting)
    assert scheduler.take(1000) == waiting[::2]
    assert scheduler.take(1000) == waiting[1::2]


def test_head_that_does_not_fit_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = sequence(width=4)
    scheduler = Queue(wide, sequence())
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "_fits", lambda batch: batch[0].width < 4)
        assert scheduler.take() == []
    assert scheduler.take() == [wide]


def test_head_larger_than_the_remaining_budget_waits_for_the_next_turn() -> None:
    long = sequence(source=200)
    scheduler = Queue(long)
    assert scheduler.take(is_fresh=False) == []
    assert scheduler.take() == [long]


def test_long_prompt_is_prefilled_alone_and_in_chunks_where_the_model_can() -> None:
    long, short = sequence(30), sequence(5)
    batch = Queue(long, short, takes_chunks=True).next_batch(100, is_fresh=True)
    assert (batch.sequences, batch.tokens, batch.is_chunked) == ([long], 10, True)
    like = sequence(29)
    whole = Queue(long, like).next_batch(100, is_fresh=True)
    assert (whole.sequences, whole.tokens, whole.is_chunked) == ([long, like], 60, False)


def test_short_prompts_overtake_a_second_long_one_while_the_first_is_prefilled() -> None:
    first, second, short = sequence(30), sequence(30), sequence(5)
    scheduler = Queue(first, second, short, takes_chunks=True)
    started = scheduler.next_batch(100, is_fresh=True)
    started.running.begin_prefill(first, CachedPrefix())
    assert scheduler.take() == [short]
    assert scheduler.take() == []
    started.running.drop_prefill(*started.running.prefilling)
    assert scheduler.take() == [second]


def test_prompt_with_a_shared_prefix_waits_until_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, other = sequence(5), sequence(6), sequence(7)
    openings = {first: (1,), second: (1,), other: None}
    scheduler = Queue(first, second, other, takes_chunks=True)
    monkeypatch.setattr(scheduler, "_shareable_prefix", openings.__getitem__)
    assert scheduler.take() == [first, other]
    monkeypatch.setattr(scheduler, "_cached_tokens", lambda waiting: 4)
    stored = scheduler.next_batch(100, is_fresh=True)
    assert (stored.sequences, stored.tokens, stored.is_chunked) == ([second], 2, True)


def test_image_counts_its_patches() -> None:
    rules = RULES.model_copy(update={"decoder_start_ids": (0,)})
    pictures = [
        SequenceState(
            EngineRequest(rules, pixels=np.zeros((224, 224, 3), np.uint8)), lambda event: None
        )
        for _ in range(3)
    ]
    batch = Queue(*pictures).next_batch(400, is_fresh=True)
    assert (len(batch.sequences), batch.tokens) == (2, 2 * (196 + 1))


def test_wide_request_is_served_beside_an_endless_stream_of_narrow_ones() -> None:
    decoder = EngineCore(FakeRunner(LOGITS, 20), Capacity(rows=16))
    narrow = RULES.model_copy(update={"max_new_tokens": 9, "num_beams": 1})
    events: list[Event] = []
    for turn in range(100):
        for _ in range(3):
            decoder.add(SequenceState(EngineRequest(narrow, np.array([4])), lambda event: None))
        if turn == 20:
            wide = narrow.model_copy(update={"num_beams": 16})
            decoder.add(SequenceState(EngineRequest(wide, np.array([4])), events.append))
        decoder.step()
    assert [type(event) for event in events] == [Finished]


def test_rows_bound_the_batch_and_wider_requests_are_refused() -> None:
    decoder = EngineCore(FakeRunner(LOGITS, 20), Capacity(rows=4))
    events: list[Event] = []
    for width in (1, 4, 2, 3, 1, 4, 1, 1, 2):
        rules = RULES.model_copy(update={"num_beams": width})
        decoder.add(SequenceState(EngineRequest(rules, np.array([4])), events.append))
    highest = 0
    while not decoder.is_idle:
        decoder.step()
        highest = max(highest, decoder.rows_in_use)
        assert decoder.rows_in_use <= 4
    assert highest == 4
    assert [type(event) for event in events] == [Finished] * 9
    for overrides in ({"num_beams": 5}, {"do_sample": True, "best_of": 5}):
        wider = EngineRequest(RULES.model_copy(update=overrides), np.array([4]))
        with pytest.raises(InvalidRequest) as refusal:
            decoder.check_fits(wider)
        assert refusal.value.field in overrides


def test_memory_bounds_the_batch() -> None:
    """32 positions in each of 4 rows, and the prompt's state during prefill."""
    capacity = Capacity(state_bytes=4 * 32 + 24)
    runner = FakeRunner(LOGITS, 20)
    decoder = EngineCore(runner, capacity)
    rules = RULES.model_copy(update={"max_new_tokens": 10})
    events: list[Event] = []
    for _ in range(9):
        decoder.add(SequenceState(EngineRequest(rules, prompt_ids=(2,) * 20), events.append))
    highest = 0
    while not decoder.is_idle:
        decoder.step()
        highest = max(highest, decoder.rows_in_use)
        assert decoder.metrics.state_bytes <= capacity.state_bytes
        assert runner.groups[-1].expected_sequences <= 4, (
            "addresses for more than memory would hold"
        )
    assert highest == 4
    assert [type(event) for event in events] == [Finished] * 9


def test_memory_is_reserved_for_waiting_sequences() -> None:
    runner = FakeRunner(LOGITS, 20)
    decoder = EngineCore(
        runner, Capacity(rows=16, prefill_tokens=40, prefill_tokens_beside=40, chunk_tokens=40)
    )
    for _ in range(9):
        decoder.add(sequence(prompt=20))
    decoder.step()
    assert decoder.rows_in_use == 2
    assert runner.groups[-1].expected_sequences == 9


def test_call_prefills_at_most_its_token_limit() -> None:
    scheduler = Queue(*(sequence(prompt=100) for _ in range(9)))
    sizes = [len(scheduler.take(2048)) for _ in range(2)]
    assert sizes == [5, 4]


def test_request_that_could_never_fit_fails_at_once() -> None:
    runner, request = FakeRunner(LOGITS, 20), EngineRequest(RULES, prompt_ids=(2,) * 90)
    with pytest.raises(TooLong):
        decode(runner, [request], Capacity(state_bytes=100))
    assert not runner.groups


def test_memory_counts_prompts_in_prefill() -> None:
    capacity = Capacity(state_bytes=130, chunk_tokens=10)
    decoder = EngineCore(FakeRunner(LOGITS, 20), capacity)
    events: list[Event] = []
    decoder.add(SequenceState(EngineRequest(RULES, prompt_ids=(2,) * 43), events.append))
    decoder.step()
    rules = RULES.model_copy(update={"max_new_tokens": 10})
    for _ in range(3):
        decoder.add(SequenceState(EngineRequest(rules, prompt_ids=(2,) * 8), events.append))
    while not decoder.is_idle:
        decoder.step()
        assert decoder.metrics.state_bytes <= capacity.state_bytes
    assert [type(event) for event in events] == [Finished] * 4


def test_running_batch_shrinks_when_others_need_memory() -> None:
    """13 rows of 32 positions shrink to 12 of 24; the rest fits four more of 24."""
    capacity = Capacity(state_bytes=520)
    decoder = EngineCore(FakeRunner(LOGITS, 20), capacity)
    events: list[Event] = []

    def add(prompt: int, tokens: int, width: int = 1) -> None:
        rules = RULES.model_copy(update={"max_new_tokens": tokens, "num_beams": width})
        decoder.add(
            SequenceState(EngineRequest(rules, prompt_ids=(2,) * (prompt - 1)), events.append)
        )

    add(prompt=30, tokens=2)
    for _ in range(12):
        add(prompt=17, tokens=7)
    decoder.step()
    decoder.step()
    assert (decoder.rows_in_use, decoder.metrics.state_bytes) == (12, 16 * 32)
    add(prompt=17, tokens=7, width=4)
    decoder.step()
    assert (decoder.rows_in_use, decoder.metrics.state_bytes) == (16, 16 * 24)
    finish(decoder)
    assert [type(event) for event in events] == [Finished] * 14


PREFIXES = 1 << 18
POSITION = 2 * 2 * 8 * 4  # bytes: layers, keys and values, width, float32


def capacity(rows: int) -> Capacity:
    return Capacity(rows=rows, prefix_bytes=PREFIXES)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Of at most 512 positions."""
    made = language_bundle(tmp_path_factory.mktemp("language"))
    limits = Limits(max_total_tokens=512)
    return Bundle(made.folder, made.manifest.model_copy(update={"limits": limits}))


def check(bundle: Bundle, free_bytes: int, wanted: Capacity) -> None:
    device = HostDevice()
    runner = OrtRunner(bundle, 1, device=device)
    device.runtime.capacity_bytes = device.runtime.allocated_bytes + free_bytes
    check_memory(runner, bundle.manifest, wanted)


def test_memory_for_every_row_at_its_longest_is_enough(bundle: Bundle) -> None:
    scores = 64 * 24 * 8
    check(bundle, 64 * 512 * POSITION + PREFIXES + scores, capacity(64))


def test_rows_that_fit_are_named_and_fit(bundle: Bundle) -> None:
    free = 40 * 512 * POSITION + PREFIXES
    with pytest.raises(BundleError, match="for 64 rows, its device has") as refused:
        check(bundle, free, capacity(64))
    assert "max_rows 32 would fit" in refused.value.message  # 48 is the next size of arenas
    check(bundle, free, capacity(32))


def test_no_row_fits(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="0 MiB free: not even one row fits"):
        check(bundle, 1000, capacity(64))


def test_bound_on_states_bounds_what_is_needed(bundle: Bundle) -> None:
    check(bundle, 1 << 20, Capacity(rows=64, state_bytes=1 << 18, prefix_bytes=PREFIXES))


def test_memory_of_the_host_is_not_checked(bundle: Bundle) -> None:
    check_memory(OrtRunner(bundle, 1), bundle.manifest, Capacity(rows=4096, state_bytes=1 << 50))


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
