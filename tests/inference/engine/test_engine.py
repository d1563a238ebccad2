"""The engine's thread and its submission API: refusal, cancellation, failure, shutdown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inference.bundle.manifest import Graph, Limits, Manifest, Role, Tensor
from inference.engine.engine import Engine, EngineCore
from inference.engine.request import Cancelled, EngineRequest, Event, Failed, RequestValidator
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.errors import InternalError, InvalidRequest, Overloaded, TooLong, Unavailable
from inference.generation import Finished, Generation, TokenChunk
from tests.inference.engine.fake_runner import FakeGroup, FakeRunner, History, finish, hashed_logits
from tests.inference.tiny_models import make_manifest

PATIENCE_S = 30
LOGITS = hashed_logits(20)
RULES = Generation(pad_token_id=0, decoder_start_ids=(0,), eos_token_ids=(1,), max_new_tokens=6)


def manifest(limits: Limits | None = None) -> Manifest:
    source = Tensor(name="source_ids", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
    graphs = {"admit": Graph(file="admit.onnx", inputs=(source,), outputs=())}
    limits = limits or Limits(max_input_tokens=8, max_total_tokens=12)
    return make_manifest("fake", "translate", graphs, limits=limits, vocabulary_size=20)


class Gate:
    """Logits that wait for a permit, so that a test controls each step of the engine."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.started = threading.Semaphore(0)

    def __call__(self, source: History, history: History) -> np.ndarray:
        self.started.release()
        assert self._permits.acquire(timeout=PATIENCE_S)
        return LOGITS(source, history)

    def open(self, times: int = 10_000) -> None:
        self._permits.release(times)


class Inbox:
    """A listener that a test can wait for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, TokenChunk):
            self._ended.set()

    @property
    def end(self) -> Event:
        assert self._ended.wait(PATIENCE_S), "no final event"
        return self.events[-1]


def settle(engine: Engine) -> None:
    """Waits until the engine is idle; its counters are of its last whole turn."""
    with engine._changed:
        assert engine._changed.wait_for(lambda: engine.is_asleep, PATIENCE_S)


def request(*source: int, rules: Generation = RULES) -> EngineRequest:
    return EngineRequest(rules, source_ids=np.array(source or (4, 5)))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate) -> Iterator[Engine]:
    runner = FakeRunner(gate, 20)
    engine = Engine(runner, RequestValidator(manifest()), Capacity(rows=16, waiting=2))
    yield engine
    gate.open()
    engine.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(FakeRunner(LOGITS, 20), RequestValidator(manifest()))
    yield made
    made.close()


def fail(*arguments: object) -> None:
    raise RuntimeError("no device")


def test_generate_answers(engine: Engine) -> None:
    answer = engine.generate(request(4, 5, 6))
    assert answer.prompt_tokens == 3
    assert answer.generated_tokens == len(answer.hypotheses[0].token_ids) <= 6


def test_full_queue_refuses_at_once(gate: Gate, gated: Engine) -> None:
    first = Inbox()
    gated.submit(request(), first)
    assert gate.started.acquire(timeout=PATIENCE_S)  # it has left the queue
    gated.submit(request(), Inbox())
    gated.submit(request(), Inbox())
    assert not gated.wait_for_capacity(timeout_s=0)
    with pytest.raises(Overloaded):
        gated.submit(request(), Inbox())
    gate.open()
    assert isinstance(first.end, Finished)
    assert gated.wait_for_capacity(PATIENCE_S)


def test_cancelled_request_ends_and_frees_its_row(gate: Gate, gated: Engine) -> None:
    inbox = Inbox()
    sequence = gated.submit(request(), inbox)
    assert gate.started.acquire(timeout=PATIENCE_S)
    sequence.cancel()
    gate.open()
    assert isinstance(inbox.end, Cancelled)
    assert isinstance(gated.generate(request()), Finished)
    settle(gated)
    assert gated.metrics.rows_in_use == 0


def test_close_ends_live_requests_and_wakes_waiters(gate: Gate, gated: Engine) -> None:
    inboxes = [Inbox(), Inbox(), Inbox()]
    gated.submit(request(), inboxes[0])
    assert gate.started.acquire(timeout=PATIENCE_S)
    for inbox in inboxes[1:]:
        gated.submit(request(), inbox)
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(gated.wait_for_capacity()))
    waiter.start()
    closer = threading.Thread(target=gated.close)
    closer.start()
    gate.open()
    closer.join(PATIENCE_S)
    waiter.join(PATIENCE_S)
    ends = [inbox.end for inbox in inboxes]
    assert all(isinstance(end, Failed) and isinstance(end.error, Unavailable) for end in ends)
    assert len(woken) == 1
    with pytest.raises(Unavailable):
        gated.submit(request(), Inbox())


def test_exception_fails_live_requests_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = threading.Event()
    broken.set()

    def logits(source: History, history: History) -> np.ndarray:
        if broken.is_set():
            raise RuntimeError("the model failed")
        return LOGITS(source, history)

    engine = Engine(FakeRunner(logits, 20), RequestValidator(manifest()))
    with pytest.raises(InternalError) as caught:
        engine.generate(request())
    assert "the model failed" not in caught.value.message
    assert "the model failed" in caplog.text
    broken.clear()
    assert isinstance(engine.generate(request()), Finished)
    assert engine.metrics.failures == 1
    engine.close()


def test_rules_that_ban_everything_fail_only_their_own_request(engine: Engine) -> None:
    banned = RULES.model_copy(update={"suppress_tokens": tuple(range(20))})
    with pytest.raises(InvalidRequest):
        engine.generate(request(rules=banned))
    assert engine.metrics.failures == 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (EngineRequest(RULES), InvalidRequest),
        (EngineRequest(RULES, source_ids=np.array([], np.int64)), InvalidRequest),
        (EngineRequest(RULES, source_ids=np.array([20])), InvalidRequest),
        (EngineRequest(RULES, source_ids=np.array([-1])), InvalidRequest),
        (EngineRequest(RULES, source_ids=np.arange(9)), TooLong),
        (EngineRequest(RULES, np.array([3]), prompt_ids=(2,) * 11), TooLong),
        (EngineRequest(RULES, np.array([3]), prompt_ids=(99,)), InvalidRequest),
        (EngineRequest(RULES, np.array([3]), np.zeros((2, 2, 3), np.uint8)), InvalidRequest),
    ],
)
def test_bad_request_is_refused_at_submission(bad: EngineRequest, error: type[Exception]) -> None:
    with pytest.raises(error):
        RequestValidator(manifest()).validate(bad)


def test_request_that_could_never_fit_is_refused_at_submission() -> None:
    engine = Engine(FakeRunner(LOGITS, 20), RequestValidator(manifest()), Capacity(state_bytes=40))
    assert isinstance(engine.generate(request()), Finished)
    with pytest.raises(TooLong, match="ask for fewer tokens or beams"):
        engine.submit(request(rules=RULES.model_copy(update={"num_beams": 4})), Inbox())
    settle(engine)
    assert (engine.metrics.waiting, engine.metrics.state_bytes) == (0, 0)
    engine.close()


def test_max_new_tokens_is_limited_to_the_free_positions() -> None:
    accepted = RequestValidator(manifest()).validate(
        EngineRequest(RULES, np.array([3]), prompt_ids=(2,) * 8)
    )
    assert accepted.rules.max_new_tokens == 3


def test_idle_engine_trims_memory() -> None:
    runner = FakeRunner(LOGITS, 20)
    engine = Engine(runner, RequestValidator(manifest()), trim_after_s=0.01)
    engine.generate(request())
    runner.spare_bytes = 100
    engine.generate(request())
    with engine._changed:
        assert engine._changed.wait_for(lambda: runner.spare_bytes == 0, PATIENCE_S)
    assert engine.metrics.spare_bytes == 0
    engine.generate(request())
    engine.close()


class Failing:
    """Raises each time that it is called while it is broken."""

    def __init__(self, then: Callable[..., object], times: int = 1) -> None:
        self.times = times
        self._then = then

    def __call__(self, *arguments: object) -> object:
        if self.times:
            self.times -= 1
            raise RuntimeError("no device")
        return self._then(*arguments)


@pytest.mark.parametrize("times", [1, 3])
def test_memory_that_cannot_be_freed_ends_no_thread(times: int) -> None:
    runner = FakeRunner(LOGITS, 20)
    trim = Failing(runner.trim, times)
    runner.trim = trim
    engine = Engine(runner, RequestValidator(manifest()), trim_after_s=0.01)
    for left in reversed(range(times)):
        assert isinstance(engine.generate(request()), Finished)
        with engine._changed:
            assert engine._changed.wait_for(lambda left=left: trim.times == left, PATIENCE_S)
    assert isinstance(engine.generate(request()), Finished)
    settle(engine)
    assert engine.metrics.failures == times
    engine.close()


def test_a_request_that_cannot_be_queued_fails_alone(engine: Engine) -> None:
    engine._decoder.add = Failing(engine._decoder.add)
    inboxes = [Inbox(), Inbox()]
    with engine._changed:  # both are taken at once
        for inbox in inboxes:
            engine.submit(request(), inbox)
    first, second = (inbox.end for inbox in inboxes)
    assert isinstance(first, Failed)
    assert isinstance(first.error, InternalError)
    assert isinstance(second, Finished)
    assert isinstance(engine.generate(request()), Finished)


@pytest.mark.parametrize(
    "broken",
    [
        lambda engine: (FakeGroup, "step"),
        lambda engine: (FakeGroup, "admit_deferred"),
        lambda engine: (engine._decoder, "_decode_step"),
        lambda engine: (engine._decoder._scheduler, "next_batch"),
    ],
    ids=["step", "admit", "turn", "scheduler"],
)
def test_state_that_cannot_be_freed_leaves_no_request_waiting(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[Engine], tuple[object, str]],
) -> None:
    inboxes = [Inbox(), Inbox(), Inbox()]
    with monkeypatch.context() as patch:
        patch.setattr(FakeGroup, "release", fail)
        patch.setattr(*broken(engine), fail)
        for inbox in inboxes:
            engine.submit(request(), inbox)
        ends = [inbox.end for inbox in inboxes]
    assert all(isinstance(end, Failed) for end in ends)
    assert isinstance(engine.generate(request()), Finished)


def test_close_ends_requests_whose_state_cannot_be_freed(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(FakeRunner(gate, 20), RequestValidator(manifest()))
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        engine.submit(request(), inbox)
    assert gate.started.acquire(timeout=PATIENCE_S)
    monkeypatch.setattr(FakeGroup, "release", fail)
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.open()
    closer.join(PATIENCE_S)
    assert all(isinstance(inbox.end, Failed) for inbox in inboxes)


CANCELLATION_LOGITS = hashed_logits(20, end_bias=-100.0)  # no end token before the last
CANCELLATION_RULES = Generation(
    decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=60
)
STEPS = 2


class Scenario:
    """A decoder of two rows with one resident sequence; others are added."""

    def __init__(self) -> None:
        capacity = Capacity(rows=2, prefill_tokens=20, prefill_tokens_beside=4, chunk_tokens=4)
        self.runner = FakeRunner(CANCELLATION_LOGITS, 20)
        self.decoder = EngineCore(self.runner, capacity)
        self.resident, self.stays = self.add()
        self.decoder.step()

    def add(self, prompt: int = 1, width: int = 1) -> tuple[SequenceState, list[Event]]:
        events: list[Event] = []
        rules = CANCELLATION_RULES.model_copy(update={"num_beams": width})
        sequence = SequenceState(
            EngineRequest(rules, np.array([4]), prompt_ids=(2,) * prompt), events.append
        )
        self.decoder.add(sequence)
        return sequence, events

    def turns_until(self, is_reached: Callable[[], bool]) -> int:
        """Turns of the loop until the condition holds, at most `STEPS`."""
        for turn in range(STEPS + 1):
            if is_reached():
                return turn
            self.decoder.step()
        raise AssertionError(f"not within {STEPS} steps")

    def phase(self, sequence: SequenceState) -> str:
        """The phase of a sequence added after the resident."""
        if self.decoder.waiting:
            return "queued"
        return "decoding" if sequence.generated else "prefilling"

    @property
    def live_rows(self) -> int:
        """Rows with state, counted in the runner."""
        return sum(len(group.rows) for group in self.runner.groups)


def check_that_the_resident_is_answered(scenario: Scenario) -> None:
    finish(scenario.decoder)
    (end,) = scenario.stays
    assert isinstance(end, Finished)
    assert len(end.hypotheses[0].token_ids) == CANCELLATION_RULES.max_new_tokens
    assert scenario.decoder.rows_in_use == scenario.live_rows == 0
    assert scenario.decoder.metrics.state_bytes == 0


CANCELLED: dict[str, tuple[dict[str, int], tuple[int, ...]]] = {
    "queued": ({"width": 2}, (0, 1, 5)),  # two rows, of which one is taken
    "prefilling": ({"prompt": 30}, (1, 2, 3)),  # eight chunks, one per turn
    "decoding": ({}, (1, 2, 20)),
}
"""Phase in which a sequence is cancelled → what it is, and turns before."""


@pytest.mark.parametrize(
    ("phase", "after"), [(phase, after) for phase in CANCELLED for after in CANCELLED[phase][1]]
)
def test_cancelled_sequence_frees_its_state_in_every_phase(phase: str, after: int) -> None:
    scenario = Scenario()
    sequence, events = scenario.add(**CANCELLED[phase][0])
    for _ in range(after):
        scenario.decoder.step()
    assert scenario.phase(sequence) == phase
    sequence.cancel()
    assert scenario.turns_until(lambda: bool(events)) <= STEPS
    assert [type(event) for event in events] == [Cancelled]
    assert scenario.decoder.rows_in_use == 1
    assert scenario.live_rows == 1
    assert scenario.decoder.waiting == 0
    check_that_the_resident_is_answered(scenario)


def test_freed_slot_is_assigned_to_a_queued_sequence_within_the_same_steps() -> None:
    scenario = Scenario()
    sequence, first_events = scenario.add()
    scenario.decoder.step()
    waits, events = scenario.add()
    scenario.decoder.step()
    assert scenario.decoder.waiting == 1
    sequence.cancel()
    assert scenario.turns_until(lambda: waits.generated > 0) <= STEPS
    assert [type(event) for event in first_events] == [Cancelled]
    assert events == []
    check_that_the_resident_is_answered(scenario)


def test_cancelled_beams_free_all_their_rows() -> None:
    scenario = Scenario()
    scenario.resident.cancel()
    scenario.decoder.step()
    sequence, events = scenario.add(width=2)
    scenario.decoder.step()
    scenario.decoder.step()
    assert scenario.decoder.rows_in_use == 2
    sequence.cancel()
    assert scenario.turns_until(lambda: bool(events)) <= STEPS
    assert (
        scenario.decoder.rows_in_use
        == scenario.live_rows
        == scenario.decoder.metrics.state_bytes
        == 0
    )
