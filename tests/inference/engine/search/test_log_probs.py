"""Requested log-probabilities are the terms of the scores."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.engine_core import EngineCore, decode
from inference.engine.runners.candidates import CandidateRequest
from inference.engine.runners.edits import HostLogits, select_candidates
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState
from inference.generation import Generation
from inference.sequences import Finished, Hypothesis, TokenChunk
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits, rank
from tests.inference.engine.penalties import edit_after

VOCABULARY = 30
LOGITS = hashed_logits(VOCABULARY)
WAYS: dict[str, dict[str, object]] = {
    "greedy": {},
    "penalised": {"repetition_penalty": 1.5, "logit_bias": {4: 1.0}},
    "banned": {"suppress_tokens": (5, 6, 7, 8), "no_repeat_ngram_size": 1},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "penalised beams": {"num_beams": 2, "repetition_penalty": 1.5},
    "samples": {"do_sample": True, "seed": 1, "num_return_sequences": 3, "temperature": 1.5},
    "cut samples": {"do_sample": True, "seed": 2, "top_k": 2, "frequency_penalty": 0.5},
}


def request(*, stream: bool = False, **overrides: object) -> EngineRequest:
    rules = Generation.model_validate(
        {
            "decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
            "max_new_tokens": 8, "top_log_probs": 3, **overrides,
        }
    )  # fmt: skip
    return EngineRequest(rules, np.array([4, 5]), stream=stream)


def found(**overrides: object) -> tuple[Hypothesis, ...]:
    return decode(FakeRunner(LOGITS, VOCABULARY), [request(**overrides)])[0].hypotheses


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_their_sums(way: str) -> None:
    for hypothesis in found(**WAYS[way]):
        assert len(hypothesis.log_probs) == len(hypothesis.top) == len(hypothesis.token_ids)
        mean = sum(hypothesis.log_probs) / len(hypothesis.token_ids)
        assert hypothesis.score == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_best_tokens_are_returned_per_position(way: str) -> None:
    """Three per position, best first, the chosen token among them if it ranks in the top three."""
    for hypothesis in found(**WAYS[way]):
        for token, log_prob, top in zip(
            hypothesis.token_ids, hypothesis.log_probs, hypothesis.top, strict=True
        ):
            values = [value for _, value in top]
            assert len(top) == 3
            assert values == sorted(values, reverse=True)
            assert dict(top).get(token, log_prob) == log_prob
            assert token in dict(top) or log_prob <= values[-1]


def test_they_are_of_the_penalised_distribution_before_temperature_and_truncation() -> None:
    overrides = {**WAYS["cut samples"], "temperature": 0.5, "top_log_probs": 20}
    (hypothesis,) = found(**overrides)
    for place in range(len(hypothesis.token_ids)):
        history = hypothesis.token_ids[:place]
        edit = edit_after(request(**overrides).rules, (0,), history)
        logits = LOGITS((4, 5), (0, *history))[None].copy()
        wanted = select_candidates(HostLogits(logits, rank), [CandidateRequest(20, edit)])
        ids, log_probs = zip(*hypothesis.top[place], strict=True)
        assert list(ids) == wanted.token_ids[0].tolist()
        assert log_probs == pytest.approx(wanted.log_probs[0].tolist(), rel=1e-5)


def test_forced_end_has_probability_one() -> None:
    (hypothesis,) = found(forced_eos_token_id=1, max_new_tokens=2, suppress_tokens=(1,))
    assert hypothesis.log_probs[-1] == 0
    assert hypothesis.top[-1] == ((1, 0.0),)


def test_log_probs_may_be_requested_without_best_tokens() -> None:
    (hypothesis,) = found(top_log_probs=0)
    assert hypothesis.log_probs
    assert all(not top for top in hypothesis.top)


def test_log_probs_are_absent_unless_requested() -> None:
    (hypothesis,) = found(top_log_probs=None)
    assert hypothesis.log_probs == hypothesis.top == ()


@pytest.mark.parametrize("way", ["greedy", "penalised", "cut samples"])
def test_pieces_carry_their_own(way: str) -> None:
    events: list[Event] = []
    decoder = EngineCore(FakeRunner(LOGITS, VOCABULARY), Capacity())
    decoder.add(SequenceState(request(stream=True, **WAYS[way]), events.append))
    while not decoder.is_idle:
        decoder.step()
    *pieces, end = events
    assert isinstance(end, Finished)
    chunks = [piece for piece in pieces if isinstance(piece, TokenChunk)]
    assert all(len(piece.log_probs) == len(piece.token_ids) == 1 for piece in chunks)
    assert sum((piece.log_probs for piece in chunks), ()) == end.hypotheses[0].log_probs
    assert sum((piece.top for piece in chunks), ()) == end.hypotheses[0].top


def test_given_tokens_are_scored_without_best_ones_too() -> None:
    given = {"given_ids": (7, 9, 4), "max_new_tokens": 3}
    (wanted,), (alone,) = found(**given), found(**given, top_log_probs=0)
    assert alone.token_ids == (7, 9, 4)
    assert alone.log_probs == wanted.log_probs
    assert alone.top == ((), (), ())
