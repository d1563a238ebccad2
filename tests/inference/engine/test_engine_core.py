"""One turn: decoding beside prefill, cancellation, local faults; buffers of states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.bundle.manifest import Growth, State
from inference.engine.engine import EngineCore
from inference.engine.request import Cancelled, EngineRequest, Event, Failed
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.engine.state.device import Device, EntryCopies
from inference.engine.state.group_state import (
    BufferPool,
    BufferShape,
    GroupState,
    MemoryModel,
    bucket,
)
from inference.errors import DeadlineExceeded, InternalError
from inference.generation import Finished, Generation, TokenChunk
from tests.inference.engine.fake_runner import (
    FakeRunner,
    History,
    finish,
    hashed_logits,
    streamed_ids,
)
from tests.inference.engine.toy_bundles import VOCABULARY, language_bundle

LOGITS = hashed_logits(VOCABULARY)
RULES = Generation(pad_token_id=0, decoder_start_ids=(0,), max_new_tokens=50)
CAPACITY = Capacity(rows=16, prefill_tokens=64, prefill_tokens_beside=12, chunk_tokens=5)
FORBIDDEN = 13


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(language_bundle(tmp_path_factory.mktemp("language")), threads=1, device=device)


@pytest.fixture(params=["fake", "onnx"])
def runner(request: pytest.FixtureRequest, language: OrtRunner) -> Runner:
    return language if request.param == "onnx" else FakeRunner(LOGITS, VOCABULARY)


def forbidding(source: History, history: History) -> np.ndarray:
    """Logits of a model that raises on one token."""
    if FORBIDDEN in (*source, *history):
        raise RuntimeError("the model failed")
    return LOGITS(source, history)


class Caller:
    """Submits one request and records its events."""

    def __init__(
        self,
        decoder: EngineCore,
        prompt: tuple[int, ...] = (2,),
        rules: Generation = RULES,
        source: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.events: list[Event] = []
        ids = None if source is None else np.array([source])
        request = EngineRequest(rules, ids, prompt_ids=prompt, deadline_s=deadline_s, stream=True)
        self.sequence = SequenceState(request, self.events.append)
        decoder.add(self.sequence)

    @property
    def tokens(self) -> list[int]:
        return streamed_ids(self.events)

    @property
    def pieces(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> Event | None:
        return next((event for event in self.events if not isinstance(event, TokenChunk)), None)


def test_streams_step_between_the_chunks_of_a_long_prompt(runner: Runner) -> None:
    decoder = EngineCore(runner, CAPACITY)
    stream = Caller(decoder)
    decoder.step()
    long = Caller(decoder, prompt=(3,) * 43)
    for turn in range(1, 10):  # 44 tokens with the start token: nine pieces
        assert long.pieces == 0
        before = decoder.metrics.prefill_tokens
        decoder.step()
        assert decoder.metrics.prefill_tokens - before <= CAPACITY.chunk_tokens
        assert stream.pieces == turn + 1
        assert decoder.rows_in_use == 2
    assert long.pieces == 1


def test_no_chunk_ends_in_front_of_the_last_image() -> None:
    """What follows it, and prompts without images, are cut as ever."""
    image, runner = 11, FakeRunner(LOGITS, VOCABULARY, whole_image_token=11)
    prompt = (3, image, image, 4, 5, image, image, *(6,) * 9)
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    for held, wanted in ((pixels, [8, 5, 4]), (None, [5, 5, 5, 2])):  # with the start token
        decoder, taken = EngineCore(runner, CAPACITY), []
        request = EngineRequest(RULES, prompt_ids=prompt, pixels=held)
        sequence = SequenceState(request, [].append)
        decoder.add(sequence)
        while not sequence.generated:
            before = decoder.metrics.prefill_tokens
            decoder.step()
            taken.append(decoder.metrics.prefill_tokens - before)
        assert taken == wanted


def test_short_prompts_are_prefilled_beside_a_long_one(runner: Runner) -> None:
    decoder = EngineCore(runner, CAPACITY)
    long = Caller(decoder, prompt=(3,) * 43)
    decoder.step()
    short = Caller(decoder)
    decoder.step()
    assert (short.pieces, long.pieces) == (1, 0)


@pytest.mark.parametrize("is_decoding", [True, False])
def test_turn_prefills_no_more_than_its_budget(runner: Runner, is_decoding: bool) -> None:
    decoder = EngineCore(runner, CAPACITY)
    if is_decoding:
        Caller(decoder)
        decoder.step()
    for _ in range(15):
        Caller(decoder, prompt=(3,) * 4)
    before = decoder.metrics.prefill_tokens
    decoder.step()
    assert decoder.metrics.prefill_tokens - before == (10 if is_decoding else 60)


Phase = Callable[[EngineCore], Caller]


def queued(decoder: EngineCore) -> Caller:
    for _ in range(16):
        Caller(decoder)
    decoder.step()
    caller = Caller(decoder)
    assert decoder.waiting == 1
    return caller


def reading(decoder: EngineCore) -> Caller:
    caller = Caller(decoder, prompt=(3,) * 43)
    decoder.step()
    assert (caller.pieces, decoder.rows_in_use) == (0, 1)
    return caller


def decoding(decoder: EngineCore) -> Caller:
    caller = Caller(decoder)
    decoder.step()
    assert caller.pieces == 1
    return caller


@pytest.mark.parametrize("phase", [queued, reading, decoding])
def test_cancelled_sequence_is_gone_after_one_turn(runner: Runner, phase: Phase) -> None:
    decoder = EngineCore(runner, CAPACITY)
    caller = phase(decoder)
    held = decoder.rows_in_use + decoder.waiting
    caller.sequence.cancel()
    decoder.step()
    assert caller.end == Cancelled()
    assert decoder.rows_in_use + decoder.waiting == held - 1
    if held == 1:
        assert decoder.is_idle
        assert decoder.metrics.state_bytes == 0


@pytest.mark.parametrize("phase", [reading, decoding])
def test_deadline_ends_a_sequence_between_two_chunks(runner: Runner, phase: Phase) -> None:
    now_s = 0.0
    decoder = EngineCore(runner, CAPACITY, clock=lambda: now_s)
    prompt = (3,) * 43 if phase is reading else (2,)
    caller = Caller(decoder, prompt, deadline_s=1.0)
    decoder.step()
    assert caller.end is None
    now_s = 2.0
    decoder.step()
    assert isinstance(caller.end, Failed)
    assert isinstance(caller.end.error, DeadlineExceeded)
    assert decoder.metrics.state_bytes == 0


def test_failing_group_ends_its_own_sequences_only() -> None:
    decoder = EngineCore(FakeRunner(forbidding, VOCABULARY), Capacity())
    wide = RULES.model_copy(update={"num_beams": 2})
    survivor = Caller(decoder, rules=wide.model_copy(update={"suppress_tokens": (FORBIDDEN,)}))
    banned = RULES.model_copy(update={"suppress_tokens": (FORBIDDEN,)})
    neighbour, culprit = Caller(decoder, rules=banned), Caller(decoder, rules=banned)
    decoder.step()
    culprit.sequence.next_ids = (FORBIDDEN,)
    decoder.step()
    for caller in (neighbour, culprit):
        assert isinstance(caller.end, Failed)
        assert isinstance(caller.end.error, InternalError)
    later = Caller(decoder, rules=banned)
    finish(decoder)
    assert isinstance(survivor.end, Finished)
    assert isinstance(later.end, Finished)
    assert decoder.metrics.failures == 1
    assert decoder.metrics.state_bytes == 0


@pytest.mark.parametrize("length", [1, 4, 24])
def test_prompt_that_fails_in_prefill_fails_alone(length: int) -> None:
    """Prompts prefilled whole, in one chunk and in several."""
    rules = RULES.model_copy(update={"suppress_tokens": (FORBIDDEN,)})
    decoder = EngineCore(FakeRunner(forbidding, VOCABULARY), CAPACITY)
    running = Caller(decoder, rules=rules)
    decoder.step()
    bad = Caller(decoder, prompt=(3,) * (length - 1) + (FORBIDDEN,), rules=rules)
    finish(decoder)
    assert isinstance(bad.end, Failed)
    assert isinstance(running.end, Finished)
    assert running.end.generated_tokens == running.pieces == 50
    assert decoder.metrics.state_bytes == 0


def test_failed_prefill_leaves_a_real_group_unchanged(
    language: OrtRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = EngineCore(language, CAPACITY)
    alone = Caller(undisturbed)
    finish(undisturbed)
    other = Caller(undisturbed, prompt=(4, 5))
    finish(undisturbed)
    decoder = EngineCore(language, CAPACITY)
    running = Caller(decoder)
    decoder.step()
    bad = Caller(decoder, prompt=(3,))
    with monkeypatch.context() as patch:
        patch.setattr(language._sessions.topk, "rank", _raise)
        decoder._prefill_prompts(is_decoding=True)
    late = Caller(decoder, prompt=(4, 5))
    finish(decoder)
    assert isinstance(bad.end, Failed)
    assert [running.tokens, late.tokens] == [alone.tokens, other.tokens]


def test_failing_search_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = EngineCore(FakeRunner(LOGITS, VOCABULARY), CAPACITY)
    bad, good = Caller(decoder), Caller(decoder)
    decoder.step()
    monkeypatch.setattr(bad.sequence._search, "advance", _raise)
    finish(decoder)
    assert isinstance(bad.end, Failed)
    assert isinstance(good.end, Finished)


def test_failing_listener_fails_its_own_sequence() -> None:
    decoder = EngineCore(FakeRunner(LOGITS, VOCABULARY), CAPACITY)

    def listen(event: Event) -> None:
        raise RuntimeError("the listener failed")

    good = Caller(decoder)
    decoder.add(SequenceState(EngineRequest(RULES, prompt_ids=(2,), stream=True), listen))
    decoder.step()
    decoder.step()
    assert decoder.rows_in_use == 1
    finish(decoder)
    assert isinstance(good.end, Finished)


def test_fail_ends_every_sequence_and_frees_all_state(runner: Runner) -> None:
    decoder = EngineCore(runner, CAPACITY)
    callers = [decoding(decoder), Caller(decoder, prompt=(3,) * 43)]
    decoder.step()
    callers.append(Caller(decoder))
    decoder.fail(ValueError("closed"))
    assert all(isinstance(caller.end, Failed) for caller in callers)
    assert decoder.is_idle
    assert (decoder.metrics.state_bytes, decoder.metrics.rows_in_use) == (0, 0)


def _raise(*arguments: object) -> None:
    raise RuntimeError("no scores")


def test_buffers_serve_the_next_sequences_until_another_width_needs_some() -> None:
    runner = FakeRunner(LOGITS, VOCABULARY)
    decoder = EngineCore(runner, CAPACITY)
    for _ in range(2):
        Caller(decoder)
        finish(decoder)
    (single,) = runner.groups
    assert (decoder.metrics.state_bytes, decoder.metrics.spare_bytes) == (0, single.state_bytes)
    assert single.state_bytes
    request = EngineRequest(RULES.model_copy(update={"num_beams": 2}), prompt_ids=(2,))
    decoder.add(SequenceState(request, lambda event: None))
    finish(decoder)
    beams = runner.groups[1]
    assert beams.state_bytes
    assert not single.state_bytes
    decoder.trim()
    assert (beams.state_bytes, decoder.metrics.spare_bytes) == (0, 0)


def test_buffers_of_a_long_sequence_are_not_kept_by_short_ones() -> None:
    runner = FakeRunner(LOGITS, VOCABULARY)
    decoder = EngineCore(runner, CAPACITY)
    Caller(decoder, rules=RULES.model_copy(update={"max_new_tokens": 400}))
    finish(decoder)
    (group,) = runner.groups
    long = group.state_bytes
    Caller(decoder)
    finish(decoder)
    assert group.state_bytes < long / 2
    assert group.reservation == BufferShape.holding(1, 51, 0)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("count", "seed"), [(500, 0), *(pytest.param(2000, s, marks=pytest.mark.full) for s in (0, 1))]
)
def test_no_state_remains_after_many_requests_half_of_them_cancelled(
    runner: Runner, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    decoder = EngineCore(runner, Capacity(rows=32, chunk_tokens=16, prefix_bytes=1 << 16))
    callers: list[Caller] = []
    due: dict[int, list[SequenceState]] = {}
    turn = 0
    while len(callers) < count or not decoder.is_idle:
        for _ in range(rng.poisson(2) if len(callers) < count else 0):
            width = int(rng.choice([1, 1, 1, 2, 4]))
            rules = RULES.model_copy(
                update={"max_new_tokens": int(rng.integers(1, 30)), "num_beams": width}
            )
            prompt = tuple(rng.integers(2, 9, rng.choice([1, 5, 60])).tolist())
            callers.append(Caller(decoder, prompt, rules))
            if rng.random() < 0.5:
                cancelled_at = turn + int(rng.integers(0, 30))
                due.setdefault(cancelled_at, []).append(callers[-1].sequence)
        for sequence in due.pop(turn, []):
            sequence.cancel()
        decoder.step()
        turn += 1
    ends = [type(caller.end) for caller in callers]
    assert set(ends) == {Finished, Cancelled}
    assert 0.15 * count < ends.count(Cancelled) < 0.55 * count
    metrics = decoder.metrics
    assert (metrics.rows_in_use, metrics.waiting, metrics.state_bytes) == (0, 0, 0)
    assert metrics.failures == 0
    assert metrics.prefix_bytes <= 1 << 16


HELD = State(
    name="keys",
    growth=Growth.HOLD,
    dtype="float32",
    shape=("B", 2, "S", 3),
    step_input="keys",
    admit_output="keys",
)


class Dirty(BufferPool):
    """Returns buffers of NaN, as a model that overflowed would release them."""

    def acquire(self, needed: int, dtype: str) -> np.ndarray:
        return np.full(needed, np.nan, dtype)


@pytest.fixture
def state() -> GroupState:
    return GroupState((HELD,), 1, Dirty(CpuDevice(), limit_bytes=0))


def enter(state: GroupState, source: int) -> None:
    """One more sequence, whose keys are ones."""
    slot = len(state)
    state.ensure_capacity(slot + 1, 1, source)
    state.of(Growth.HOLD)[0].write(slot, np.ones((1, 2, source, 3), np.float32))
    state.admit(1, source)


def assert_zero_behind_sources(state: GroupState) -> None:
    (arena,) = state.of(Growth.HOLD)
    for cells, source in zip(arena.view(slice(0, len(state))), state.source_lengths, strict=True):
        assert (cells[:, :source] == 1).all()
        assert (cells[:, source:] == 0).all()


def test_written_rows_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 5)
    assert_zero_behind_sources(state)


def test_resized_arenas_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 5)
    enter(state, 40)
    assert_zero_behind_sources(state)


def test_a_move_is_announced_while_arenas_are_where_they_were(state: GroupState) -> None:
    enter(state, 5)
    announced: list[int] = []
    state.before_move = lambda: announced.append(state.of(Growth.HOLD)[0].capacity)
    state.ensure_capacity(1, 1, 5)
    assert announced == []
    enter(state, 5)
    state.shrink()
    state.release()
    assert announced == [1, 2]


def test_moved_rows_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 40)
    enter(state, 5)
    state.retire(0)
    assert_zero_behind_sources(state)


def test_adopted_rows_are_zero_behind_sources(state: GroupState) -> None:
    alone = GroupState((HELD,), 1, Dirty(CpuDevice(), limit_bytes=0))
    enter(alone, 5)
    enter(state, 40)
    state.ensure_capacity(2, 1, 5)
    state.adopt(alone)
    assert_zero_behind_sources(state)


STATES = (
    State(name="key", growth=Growth.APPEND, dtype="float32", shape=("R", 2, "P", 8),
          step_input="past", step_output="present", layout="in_place"),
    State(name="value", growth=Growth.APPEND, dtype="int8", shape=("R", 2, "P", 8), prefix=5,
          step_input="value", step_output="next_value", admit_output="first", layout="in_place"),
    State(name="hidden", growth=Growth.REPLACE, dtype="float32", shape=("R", 5),
          step_input="hidden", step_output="next"),
    State(name="memory", growth=Growth.HOLD, dtype="float16", shape=("B", 3, "S", 4),
          step_input="memory", admit_output="memory"),
    State(name="picture", growth=Growth.HOLD, dtype="float32", shape=("B", 7, 2),
          step_input="picture", admit_output="picture"),
)  # fmt: skip


class Counting(CpuDevice):
    """Counts the positions that pairs copy, over all states."""

    copied = 0

    def copy_entries(self, *jobs: EntryCopies) -> None:
        for job in jobs:
            lengths = sum(stop - start for start, stop in job.spans)
            self.copied += len(job.targets) * lengths if job.axis is not None else 0
        super().copy_entries(*jobs)


def write_step(state: GroupState, number: int) -> None:
    """Another value in each row, behind its last position and as its REPLACE state."""
    state.ensure_capacity(len(state), max(state.lengths, default=0) + 1)
    rows = np.arange(len(state) * state.width) + 100 * number
    for arena in state.of(Growth.REPLACE):
        arena.write(0, np.repeat(rows[:, None], 5, 1).astype(np.float32))
    for arena in state.of(Growth.APPEND):
        for row, value in enumerate(rows):
            end = state.lengths[row // state.width] + arena.state.prefix
            arena.view(slice(row, row + 1))[:, :, end] = value % 128
    state.advance_lengths()


def read_rows(state: GroupState) -> list[list[np.ndarray]]:
    """What each row has, of each state."""
    found = []
    for row in range(len(state) * state.width):
        length, one = state.lengths[row // state.width], slice(row, row + 1)
        cells = [
            arena.view(one)[:, :, : length + arena.state.prefix].copy()
            for arena in state.of(Growth.APPEND)
        ]
        found.append([*cells, *(arena.view(one).copy() for arena in state.of(Growth.REPLACE))])
    return found


@given(
    width=st.integers(2, 4),
    moves=st.lists(
        st.tuples(st.sampled_from(["step", "step", "copy", "copy", "admit", "retire"]),
                  st.integers(0, 99), st.permutations(range(4))), max_size=40),
)  # fmt: skip
@example(width=3, moves=[
    ("step", 0, []), ("copy", 0, [1, 2, 0]), ("step", 0, []), ("copy", 0, [0, 1, 2]),
    ("copy", 0, [1, 2, 0])])  # fmt: skip
@example(width=2, moves=[
    ("copy", 0, [0, 1]), ("admit", 0, []), ("retire", 0, []), ("copy", 0, [0, 1])])  # fmt: skip
def test_beams_get_the_state_of_their_parents(
    width: int, moves: list[tuple[str, int, list[int]]]
) -> None:
    """Whatever was copied before, a row equals its parent afterwards, and no other row changes."""
    state = GroupState(STATES, width, BufferPool(CpuDevice(), limit_bytes=0))
    for number, (move, chosen, order) in enumerate([("admit", 0, []), *moves]):
        slot = chosen % max(1, len(state))
        if move == "admit":
            state.ensure_capacity(len(state) + 1, 5, 5)
            for arena in state.of(Growth.APPEND):
                arena.write(len(state) * width, np.full((1, 2, 5, 8), number, arena.state.dtype))
            state.admit(3, 5)
        elif move == "step":
            write_step(state, number)
        elif move == "retire" and len(state):
            state.retire(slot)
        elif move == "copy" and len(state):
            rows = [slot * width + row for row in order if row < width]
            targets = rows[1 : 1 + chosen % (width - 1) + 1]
            wanted = read_rows(state)
            for target in targets:
                wanted[target] = wanted[rows[0]]
            state.copy_rows([rows[0]] * len(targets), targets)
            np.testing.assert_equal(read_rows(state), wanted)


def test_what_beams_have_in_common_is_not_copied() -> None:
    """Of a prompt of 50 tokens and two steps, the copy of a sibling takes what differs."""
    device = Counting()
    state = GroupState(STATES, 3, BufferPool(device, limit_bytes=0))
    state.ensure_capacity(1, 50, 5)
    state.admit(50, 5)

    def count(sources: list[int], targets: list[int]) -> int:
        before = device.copied
        state.copy_rows(sources, targets)
        return device.copied - before

    assert count([0, 0], [1, 2]) == 2 * (50 + 50 + 5)  # key; value with its prefix
    write_step(state, 1)
    write_step(state, 2)
    assert count([2], [1]) == 2 * 2
    write_step(state, 3)
    assert count([2], [1]) == 2 * 1
    assert count([1], [0]) == 2 * 3


def test_bytes_are_those_of_the_shapes() -> None:
    assert MemoryModel.of(STATES) == MemoryModel(position=80, row=100, source=24, sequence=56)


@given(st.integers(1, 5000), st.sampled_from([1, 16]))
def test_bucket_holds_and_wastes_at_most_half(length: int, smallest: int) -> None:
    size = bucket(length, smallest)
    assert length <= size <= max(1.5 * length, smallest)


@pytest.mark.parametrize(
    ("now", "tight", "reservation", "settled"),
    [(0, 16, 64, 32), (16, 24, 32, 32), (16, 48, 48, 48), (32, 16, 64, 32), (0, 16, 0, 16)],
)
def test_positions_double_within_the_reservation(
    now: int, tight: int, reservation: int, settled: int
) -> None:
    found = BufferShape(1, now, 16).adapt(
        BufferShape(1, tight, 16), BufferShape(1, reservation, 16)
    )
    assert found == BufferShape(1, settled, 16)


@given(
    width=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 90), st.booleans()), max_size=30),
    expected_sequences=st.integers(0, 40),
)
def test_arenas_never_exceed_their_footprint(
    width: int, moves: list[tuple[int, int, bool]], expected_sequences: int
) -> None:
    state, footprint = (
        GroupState(STATES, width, BufferPool(CpuDevice(), 1 << 20)),
        MemoryModel.of(STATES),
    )
    reservation = BufferShape()
    for length, source, is_retired in moves:
        if is_retired and len(state):
            state.retire(0)
            state.ensure_capacity(len(state), 0)
        else:
            longest = max((*state.lengths, length)), max((*state.source_lengths, source))
            reservation = reservation.union(BufferShape.holding(len(state) + 1, *longest))
            state.reservation, state.expected_sequences = reservation, expected_sequences
            state.ensure_capacity(len(state) + 1, length, source)
            state.admit(length, source)
        assert state.nbytes <= footprint.bytes(width, reservation)
        tight = BufferShape.holding(
            len(state), max(state.lengths, default=0), max(state.source_lengths, default=0)
        )
        if is_retired:
            state.shrink()
            assert state.nbytes == footprint.bytes(width, tight)
            reservation = tight


def test_released_buffer_is_reused() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    assert pool.spare_bytes == 400
    assert pool.acquire(80, "float32") is buffer
    assert pool.spare_bytes == 0


@pytest.mark.parametrize(("needed", "dtype"), [(101, "float32"), (60, "float32"), (100, "int8")])
def test_buffer_that_does_not_fit_is_not_reused(needed: int, dtype: str) -> None:
    """Too small, far too large, or of other numbers: stale int8 could be NaN as float32."""
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    taken = pool.acquire(needed, dtype)
    assert taken is not buffer
    assert (taken.size, taken.dtype) == (needed, np.dtype(dtype))
    assert not taken.any()
    assert pool.spare_bytes == 400


def test_smallest_fitting_buffer_is_reused() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=10_000)
    for size in (140, 110, 130):
        pool.release(np.zeros(size, np.float32))
    assert [pool.acquire(100, "float32").size for _ in range(4)] == [110, 130, 140, 100]


def test_clear_frees_all_buffers() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    pool.release(np.zeros(100, np.float32))
    pool.clear()
    assert pool.spare_bytes == 0
    assert not pool.acquire(100, "float32").any()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=40))
def test_keeps_within_its_limit(moves: list[tuple[bool, int]]) -> None:
    pool, out = BufferPool(CpuDevice(), limit_bytes=400), []
    for is_release, size in moves:
        if is_release and out:
            pool.release(out.pop(size % len(out)))
        else:
            taken = pool.acquire(size, "float32")
            assert taken.size >= size
            assert not any(np.shares_memory(taken, other) for other in out)
            out.append(taken)
        assert pool.spare_bytes <= 400
