"""A request's tokens equal those of running alone, whatever joins, ends or is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode
from inference.engine.request import Cancelled, EngineRequest, Event, Failed, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search import sampling
from inference.engine.sequence import SequenceState
from inference.engine.state.device import Device
from inference.errors import DeadlineExceeded, InvalidRequest
from inference.generation import Finished, Generation, Overrides, TokenChunk
from tests.inference.engine.fake_runner import (
    FakeRunner,
    Talk,
    converse,
    hashed_logits,
    run_staggered,
    streamed_ids,
    talk,
)
from tests.inference.engine.test_several_tokens import RULES, requests
from tests.serving.waiting import Clock

VOCABULARY = 20
LOGITS = hashed_logits(VOCABULARY, end_bias=1.0)
CAPACITY = Capacity(
    rows=16,
    prefill_tokens=24,
    prefill_tokens_beside=12,
    chunk_tokens=5,
    state_bytes=600,  # one byte per position of a row
    prefix_bytes=60,
    prefix_block_tokens=4,
    prefix_min_tokens=8,
)
HEADERS = ((), (), (2, 3) * 5, (4, 5, 6) * 5)


@dataclass
class Arrival:
    """One request, its time of arrival, and of its cancellation if any."""

    request: EngineRequest
    time_s: int
    cancelled_at: int | None
    events: list[Event] = field(default_factory=list)


@pytest.fixture(autouse=True, scope="module")
def few_candidates() -> Iterator[None]:
    """Four candidates: neighbours often need more, and draws often need the whole vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "DEFAULT_CANDIDATES", 4)
        yield


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    """Greedy, beams or samples; half of them with penalties and the like."""
    rows = draw(st.sampled_from([1, 1, 2, 4]))
    wanted = draw(st.integers(1, rows))
    rules: dict[str, object] = {"num_return_sequences": wanted}
    if draw(st.booleans()):
        rules |= {
            "do_sample": True,
            "best_of": draw(st.sampled_from([None, rows])),
            "seed": draw(st.integers(0, 99)),
            "temperature": draw(st.sampled_from([1.0, 0.7, 2.0])),
            "top_k": draw(st.sampled_from([0, 0, 3, 9])),
            "top_p": draw(st.sampled_from([1.0, 1.0, 0.6, 0.95])),
            "min_p": draw(st.sampled_from([0.0, 0.0, 0.2])),
            "typical_p": draw(st.sampled_from([1.0, 1.0, 0.7])),
        }
    else:
        rules |= {"num_beams": rows, "early_stopping": draw(st.booleans())}
    if draw(st.booleans()):
        rules |= {
            "repetition_penalty": draw(st.sampled_from([1.0, 1.4])),
            "presence_penalty": draw(st.sampled_from([0.0, 0.8])),
            "frequency_penalty": draw(st.sampled_from([0.0, 0.5])),
            "logit_bias": draw(st.sampled_from([{}, {5: 2.0, 7: -100.0}])),
            "min_new_tokens": draw(st.sampled_from([0, 3])),
            "renormalize_logits": draw(st.booleans()),
            "top_log_probs": draw(st.sampled_from([None, 0, 3])),
        }
    return Generation(
        decoder_start_ids=(0,),
        eos_token_ids=(1,),
        pad_token_id=0,
        max_new_tokens=draw(st.integers(1, 10)),
        no_repeat_ngram_size=draw(st.sampled_from([0, 2])),
        suppress_tokens=tuple(draw(st.lists(st.integers(2, 6), max_size=2))),
        **rules,
    )


@st.composite
def arrival_of(draw: st.DrawFn, *, has_source: bool = True) -> Arrival:
    rules = draw(generations())
    time_s = draw(st.integers(0, 12))
    cancelled = st.none() | st.integers(time_s, time_s + 15)
    deadline = draw(st.none() | st.none() | st.integers(time_s, time_s + 15))
    source = st.lists(st.integers(2, 9), min_size=1, max_size=6)
    own = tuple(draw(st.lists(st.integers(2, 9), max_size=12)))
    request = EngineRequest(
        rules,
        source_ids=np.array(draw(source)) if has_source else None,
        prompt_ids=draw(st.sampled_from(HEADERS)) + own,
        deadline_s=deadline,
        stream=draw(st.booleans()),
        priority=draw(st.sampled_from([0, 0, -100, 3, 100])),
    )
    return Arrival(request, time_s, draw(cancelled))


def arrival_lists(*, has_source: bool = True) -> st.SearchStrategy[list[Arrival]]:
    return st.lists(arrival_of(has_source=has_source), min_size=1, max_size=8)


def alone(request: EngineRequest) -> Finished:
    """The result without other requests, deadline, chunks or cached prefixes."""
    runner = FakeRunner(LOGITS, VOCABULARY, defers_admission=False, takes_chunks=False)
    return decode(runner, [replace(request, deadline_s=None)])[0]


def run(arrivals: list[Arrival], runner: FakeRunner) -> EngineCore:
    """Submits all arrivals at their times, one turn per tick."""
    clock = Clock()
    decoder = EngineCore(runner, CAPACITY, clock)
    sequences = [SequenceState(arrival.request, arrival.events.append) for arrival in arrivals]
    while clock.now_s <= 27 or not decoder.is_idle:
        for arrival, sequence in zip(arrivals, sequences, strict=True):
            if arrival.time_s == clock.now_s:
                decoder.add(sequence)
            if arrival.cancelled_at == clock.now_s:
                sequence.cancel()
        decoder.step()
        assert decoder.rows_in_use <= CAPACITY.rows
        held = decoder.metrics.state_bytes + decoder.metrics.spare_bytes
        assert held <= CAPACITY.state_bytes
        assert decoder.metrics.prefix_bytes <= CAPACITY.prefix_bytes
        assert clock.now_s < 500, "a sequence starves"
        clock.now_s += 1
    return decoder


def assert_answered(arrival: Arrival) -> None:
    """Asserts an expected end, and only tokens of running alone."""
    *pieces, end = arrival.events
    tokens = streamed_ids(pieces)
    wanted = alone(arrival.request)
    best = wanted.hypotheses[0].token_ids
    assert tuple(tokens) == best[: len(tokens)]
    if isinstance(end, Finished):
        assert end == wanted
        if arrival.request.stream and arrival.request.rules.rows == 1:
            assert tuple(tokens) == best
            chunks = [p for p in pieces if isinstance(p, TokenChunk)]
            assert sum((p.log_probs for p in chunks), ()) == end.hypotheses[0].log_probs
            assert sum((p.top for p in chunks), ()) == end.hypotheses[0].top
    elif isinstance(end, Failed):
        assert isinstance(end.error, DeadlineExceeded)
        assert arrival.request.deadline_s is not None
    else:
        assert isinstance(end, Cancelled)
        assert arrival.cancelled_at is not None


@given(arrivals=arrival_lists())
def test_tokens_equal_those_of_a_request_alone(arrivals: list[Arrival]) -> None:
    run(arrivals, FakeRunner(LOGITS, VOCABULARY))
    for arrival in arrivals:
        assert_answered(arrival)


@given(arrivals=arrival_lists(has_source=False))
def test_shared_prefixes_change_no_token(arrivals: list[Arrival]) -> None:
    run(arrivals, FakeRunner(LOGITS, VOCABULARY, shares_prefixes=True))
    for arrival in arrivals:
        assert_answered(arrival)


@given(talk=talk, prefix_bytes=st.integers(0, 200))
def test_turns_of_conversations_have_the_tokens_of_whole_prompts(
    talk: Talk, prefix_bytes: int
) -> None:
    runner = FakeRunner(LOGITS, VOCABULARY, shares_prefixes=True)
    core = EngineCore(runner, replace(CAPACITY, prefix_bytes=prefix_bytes, state_bytes=2000))
    asked, found = converse(core, talk)
    assert found == [alone(request) for request in asked]


@given(arrivals=arrival_lists(), takes_chunks=st.booleans())
def test_no_state_remains_after_all_sequences_ended(
    arrivals: list[Arrival], takes_chunks: bool
) -> None:
    runner = FakeRunner(LOGITS, VOCABULARY, takes_chunks=takes_chunks)
    decoder = run(arrivals, runner)
    assert all(not group.rows for group in runner.groups)
    assert decoder.rows_in_use == decoder.waiting == decoder.metrics.state_bytes == 0


@pytest.mark.parametrize("takes_chunks", [True, False])
def test_every_undisturbed_request_finishes_in_a_full_engine(takes_chunks: bool) -> None:
    rules = Generation(pad_token_id=0, decoder_start_ids=(0,), max_new_tokens=5, num_beams=4)
    requests = [
        EngineRequest(rules, np.array([n]), prompt_ids=(2,) * (n % 9)) for n in range(2, 40)
    ]
    runner = FakeRunner(LOGITS, VOCABULARY, takes_chunks=takes_chunks)
    assert decode(runner, requests, CAPACITY) == [alone(request) for request in requests]


def test_chunks_contain_every_token_once() -> None:
    rules = Generation(pad_token_id=0, decoder_start_ids=(0,), eos_token_ids=(1,), max_new_tokens=8)
    decoder = EngineCore(FakeRunner(LOGITS, VOCABULARY), Capacity())
    request = EngineRequest(rules, np.array([4]), stream=True)
    [[*pieces, end]] = run_staggered(decoder, [request])
    assert isinstance(end, Finished)
    assert tuple(streamed_ids(pieces)) == end.hypotheses[0].token_ids
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


CHANGES: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 4, "top_k": 9, "eos_token_ids": ()},
    "penalised": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": ((3,), (9, 5)),
        "eos_token_ids": (),
        "top_log_probs": 2,
    },
    "forced": {"forced_bos_token_id": 5, "forced_eos_token_id": 1, "min_new_tokens": 6},
    "sampled with log-probabilities": {"do_sample": True, "seed": 8, "top_log_probs": 3},
}


@pytest.fixture(scope="module")
def runner(bundle: Bundle, device: Device) -> OrtRunner:
    return OrtRunner(bundle, threads=1, device=device)


def lost(request: EngineRequest, token_ids: tuple[int, ...]) -> EngineRequest:
    """The request of a sequence that was lost with these tokens."""
    overrides = Overrides(generated_ids=token_ids)
    return replace(request, rules=request.rules.with_overrides(overrides))


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_sequence_goes_on_at_the_next_token(
    bundle: Bundle, runner: OrtRunner, changes: dict[str, object]
) -> None:
    asked = requests(bundle, RULES.model_copy(update=changes), count=3)
    whole = [one.best for one in decode(runner, asked)]
    cuts = [
        (number, cut)
        for number, one in enumerate(whole)
        for cut in sorted({1, 2, len(one.token_ids) // 2, len(one.token_ids)} - {0})
    ]
    again = [lost(asked[number], whole[number].token_ids[:cut]) for number, cut in cuts]
    for (number, cut), one in zip(cuts, decode(runner, again), strict=True):
        wanted = whole[number]
        assert one.best.token_ids == wanted.token_ids[cut:]
        assert one.best.finish_reason == wanted.finish_reason
        assert one.best.log_probs == pytest.approx(wanted.log_probs[cut:], abs=1e-4)
        assert [[token for token, _ in top] for top in one.best.top] == [
            [token for token, _ in top] for top in wanted.top[cut:]
        ]
        assert one.prompt_tokens == asked[number].prompt_tokens


def test_stream_has_the_tokens_behind_those_given_alone(bundle: Bundle, runner: OrtRunner) -> None:
    rules = RULES.model_copy(update={"eos_token_ids": ()})
    request = replace(requests(bundle, rules, count=1)[0], stream=True)
    (whole,) = decode(runner, [request])
    again = lost(request, whole.best.token_ids[:7])
    [events] = run_staggered(EngineCore(runner, Capacity()), [again])
    sent = streamed_ids(events)
    assert tuple(sent) == whole.best.token_ids[7:]
    assert isinstance(events[-1], Finished)
    assert events[-1].best.token_ids == tuple(sent)


@pytest.mark.parametrize(
    "other",
    [
        {"num_beams": 2},
        {"do_sample": True, "num_return_sequences": 2},
        {"given_ids": (3,)},
        {"return_alignment": True},
    ],
    ids=["beams", "samples", "given tokens", "alignment"],
)
def test_what_has_no_single_next_token_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="generated_ids exclude"):
        Generation(pad_token_id=0, max_new_tokens=5, generated_ids=(2,), **other)


def test_tokens_outside_the_vocabulary_are_refused(bundle: Bundle) -> None:
    request = requests(bundle, count=1)[0]
    with pytest.raises(InvalidRequest, match="generated_ids holds ids outside"):
        RequestValidator(bundle.manifest).validate(lost(request, (100_000,)))
