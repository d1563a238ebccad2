"""Whatever comes, goes or fails beside it: a request's answer is that of running alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engine.decoder import Decoder, decode
from serving.engine.request import Cancelled, Event, Failed, Finished, Piece, Request
from serving.engine.scheduler import Capacity
from serving.engine.sequence import Sequence
from serving.errors import DeadlineExceeded
from serving.generation import Generation
from tests.serving.engine.fake_runner import FakeRunner, hashed_logits

VOCABULARY = 20
LOGITS = hashed_logits(VOCABULARY, end_bias=1.0)


@dataclass
class Visit:
    """One request, when it comes, and when it leaves early."""

    request: Request
    arrival: int
    cancelled_at: int | None
    events: list[Event] = field(default_factory=list)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@st.composite
def visits(draw: st.DrawFn) -> Visit:
    beams = draw(st.sampled_from([1, 1, 2, 4]))
    rules = Generation(
        decoder_start_ids=(0,),
        eos_token_ids=(1,),
        pad_token_id=0,
        max_new_tokens=draw(st.integers(1, 10)),
        num_beams=beams,
        num_return_sequences=draw(st.integers(1, beams)),
        early_stopping=draw(st.booleans()),
        no_repeat_ngram_size=draw(st.sampled_from([0, 2])),
        suppress_tokens=tuple(draw(st.lists(st.integers(2, 6), max_size=2))),
    )
    arrival = draw(st.integers(0, 12))
    leaves = st.none() | st.integers(arrival, arrival + 15)
    deadline = draw(st.none() | st.none() | st.integers(arrival, arrival + 15))
    request = Request(
        rules,
        source_ids=np.array(draw(st.lists(st.integers(2, 9), min_size=1, max_size=6))),
        prompt_ids=tuple(draw(st.lists(st.integers(2, 9), max_size=4))),
        deadline_s=deadline,
        stream=draw(st.booleans()),
    )
    return Visit(request, arrival, draw(leaves))


def alone(request: Request) -> Finished:
    """The answer without company, without deadline."""
    rules_only = Request(request.rules, request.source_ids, prompt_ids=request.prompt_ids)
    return decode(FakeRunner(LOGITS, VOCABULARY), [rules_only])[0]


def run(company: list[Visit]) -> FakeRunner:
    """Plays all visits, one turn a tick."""
    clock, runner = Clock(), FakeRunner(LOGITS, VOCABULARY)
    capacity = Capacity(rows=16, prefill_tokens=12)
    decoder = Decoder(runner, capacity, clock)
    sequences = [Sequence(visit.request, visit.events.append) for visit in company]
    while clock.now_s <= 27 or not decoder.is_idle:
        for visit, sequence in zip(company, sequences, strict=True):
            if visit.arrival == clock.now_s:
                decoder.add(sequence)
            if visit.cancelled_at == clock.now_s:
                sequence.cancel()
        decoder.turn()
        assert decoder.rows_in_use <= capacity.rows
        assert clock.now_s < 500, "somebody starves"
        clock.now_s += 1
    return runner


@settings(max_examples=200, deadline=None)
@given(company=st.lists(visits(), min_size=1, max_size=8))
def test_answer_is_that_of_running_alone(company: list[Visit]) -> None:
    run(company)
    for visit in company:
        *pieces, end = visit.events
        tokens = [token for piece in pieces for token in piece.token_ids]  # type: ignore[union-attr]
        best = alone(visit.request).hypotheses[0].token_ids
        if isinstance(end, Finished):
            assert end == alone(visit.request)
            assert (
                not visit.request.stream
                or visit.request.rules.num_beams > 1
                or (tuple(tokens) == best)
            )
        elif isinstance(end, Failed):
            assert isinstance(end.error, DeadlineExceeded)
            assert visit.request.deadline_s is not None
        else:
            assert isinstance(end, Cancelled)
            assert visit.cancelled_at is not None
        assert tuple(tokens) == best[: len(tokens)]


@settings(max_examples=100, deadline=None)
@given(company=st.lists(visits(), min_size=1, max_size=8))
def test_no_slot_leaks(company: list[Visit]) -> None:
    runner = run(company)
    assert all(not group.rows for group in runner.groups)


def test_every_undisturbed_request_is_answered_under_a_full_house() -> None:
    rules = Generation(pad_token_id=0, decoder_start_ids=(0,), max_new_tokens=5, num_beams=4)
    requests = [Request(rules, np.array([n])) for n in range(2, 40)]
    together = decode(FakeRunner(LOGITS, VOCABULARY), requests, Capacity(rows=16))
    assert together == [alone(request) for request in requests]


def test_pieces_carry_every_token_once() -> None:
    events: list[Event] = []
    rules = Generation(pad_token_id=0, decoder_start_ids=(0,), eos_token_ids=(1,), max_new_tokens=8)
    decoder = Decoder(FakeRunner(LOGITS, VOCABULARY), Capacity())
    decoder.add(Sequence(Request(rules, np.array([4]), stream=True), events.append))
    while not decoder.is_idle:
        decoder.turn()
    *pieces, end = events
    assert isinstance(end, Finished)
    tokens = [t for piece in pieces if isinstance(piece, Piece) for t in piece.token_ids]
    assert tuple(tokens) == end.hypotheses[0].token_ids
