"""Beam search with required phrases against an exhaustive search, and its states against text."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.engine.engine_core import decode
from inference.engine.scheduler import Capacity
from inference.engine.search.constrained_beam import (
    ConstrainedBeamSearch,
    PhraseTracker,
    allocate_places,
)
from inference.engine.search.request import EngineRequest
from inference.engine.sequence import SequenceState
from inference.errors import InvalidRequest
from inference.generation import Generation
from inference.processing.terms import WordEdges
from inference.sequences import Hypothesis
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits

END, VOCABULARY, LONGEST = 1, 6, 5
NO_EDGES = WordEdges.none(VOCABULARY)
# Token 4 continues a word, tokens 2 and 4 may be continued.
EDGES = WordEdges(
    np.array([False, False, False, False, True, False]),
    np.array([False, False, True, False, True, False]),
)
Phrases = tuple[tuple[tuple[int, ...], ...], ...]


def rules(phrases: Phrases, **changed: Any) -> Generation:
    plain = Generation(
        pad_token_id=0, eos_token_ids=(END,), decoder_start_ids=(0,), max_new_tokens=LONGEST
    )
    defaults = {"num_beams": 4, "suppress_tokens": (0,), "length_penalty": 0.0}
    return plain.model_copy(update={**defaults, "force_words_ids": phrases, **changed})


def searched(
    phrases: Phrases, source: int = 3, edges: WordEdges = NO_EDGES, **changed: Any
) -> tuple[Hypothesis, ...]:
    runner = FakeRunner(hashed_logits(VOCABULARY, end_bias=1.0), VOCABULARY)
    request = EngineRequest(
        rules(phrases, **changed), source_ids=np.array([source]), word_edges=edges
    )
    return decode(runner, [request], Capacity(rows=400))[0].hypotheses


def contains(tokens: tuple[int, ...], phrases: Phrases, edges: WordEdges) -> bool:
    """From left to right, the longest phrase that is missing, whole words alone.

    Of phrases that share a spelling, the one that was required last.
    """
    missing = Counter(phrases)
    order = list(missing)
    place = 0
    while place < len(tokens):
        found = [
            (len(spelling), order.index(phrase), phrase)
            for phrase, count in missing.items()
            for spelling in phrase
            if count
            and tokens[place : place + len(spelling)] == spelling
            and not joins(tokens, place, edges)
            and not joins(tokens, place + len(spelling), edges)
        ]
        length, _, phrase = max(found, default=(1, 0, None))
        if phrase is not None:
            missing[phrase] -= 1
        place += length
    return not missing.total()


def joins(tokens: tuple[int, ...], place: int, edges: WordEdges) -> bool:
    return 0 < place < len(tokens) and bool(
        edges.ends[tokens[place - 1]] and edges.begins[tokens[place]]
    )


def best(phrases: Phrases, source: int, edges: WordEdges) -> tuple[tuple[int, ...], float]:
    """Of all outputs of at most `LONGEST` tokens."""
    logits = hashed_logits(VOCABULARY, end_bias=1.0)

    def score(output: tuple[int, ...]) -> float:
        total = 0.0
        for length, token in enumerate(output):
            values = logits((source,), (0, *output[:length])).astype(np.float64)
            total += values[token] - np.logaddexp.reduce(values)
        return total

    outputs = [
        output
        for length in range(1, LONGEST + 1)
        for inner in itertools.product((2, 3, 4, 5), repeat=length - 1)
        for output in (
            [(*inner, END)] + [(*inner, token) for token in (2, 3, 4, 5) if length == LONGEST]
        )
        if contains(output, phrases, edges)
    ]
    return max(((output, score(output)) for output in outputs), key=lambda found: found[1])


REQUIRED: dict[str, Phrases] = {
    "one token": (((2,),),),
    "one of two spellings": (((2, 3), (5,)),),
    "two phrases": (((2, 3),), ((4,),)),
    "repeated": (((2,),), ((2,),)),
    "a shared prefix": (((2, 3),), ((2, 4),)),
    "one contains the other": (((2,),), ((2, 3),)),
    "one contains the other twice": (((2,),), ((2, 2, 3),)),
    "all places": (((2, 3, 2, 5, 5),),),
}


@pytest.mark.parametrize("edges", [NO_EDGES, EDGES], ids=["tokens", "words"])
@pytest.mark.parametrize("name", REQUIRED)
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_outputs(
    name: str, edges: WordEdges
) -> None:
    for source in range(4):
        found = searched(REQUIRED[name], source, edges, num_beams=400)[0]
        output, score = best(REQUIRED[name], source, edges)
        assert found.token_ids == output
        assert found.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("name", REQUIRED)
def test_narrow_beams_contain_the_phrases_too(name: str, width: int) -> None:
    for source in range(6):
        found = searched(REQUIRED[name], source, EDGES, num_beams=width, num_return_sequences=width)
        assert found
        for one in found:
            assert contains(one.token_ids, REQUIRED[name], EDGES)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


phrase = st.lists(
    st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2
).map(tuple)


@given(
    st.lists(phrase, min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(2, 5), max_size=9).map(tuple),
)
@example((((2,),), ((3, 3), (2,)), ((3, 3),)), (3, 3, 2, 2))
def test_states_agree_with_the_whole_text(phrases: Phrases, tokens: tuple[int, ...]) -> None:
    tracker = PhraseTracker(phrases, EDGES)
    state = tracker.start
    for place in range(len(tokens) + 1):
        assert (tracker.remaining(state) == 0) == contains(tokens[:place], phrases, EDGES)
        if place < len(tokens):
            state = tracker.follow(state, tokens[place])


@given(
    st.lists(phrase.map(lambda one: one[:1]), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(2, 5), max_size=6).map(tuple),
)
def test_next_tokens_lead_to_all_phrases_in_the_least_number_of_steps(
    phrases: Phrases, tokens: tuple[int, ...]
) -> None:
    tracker = PhraseTracker(phrases, NO_EDGES)
    state = tracker.start
    for token in tokens:
        state = tracker.follow(state, token)
    for left in range(tracker.remaining(state), 0, -1):
        state = min(
            (tracker.follow(state, token) for token in tracker.next_tokens(state)),
            key=tracker.remaining,
        )
        assert tracker.remaining(state) <= left - 1


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"length_penalty": 1.0},
        {"forced_eos_token_id": END},
        {"bad_words_ids": ((3,),)},
        {"renormalize_logits": True, "bad_words_ids": ((3,),)},
        {"repetition_penalty": 1.4, "early_stopping": True},
        {"top_log_probs": 2},
    ],
)
def test_without_a_phrase_it_is_the_plain_beam_search(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [searched((), source, num_return_sequences=4, **changed) for source in range(5)]
    monkeypatch.setattr("inference.engine.sequence.BeamSearch", ConstrainedBeamSearch)
    found = [searched((), source, num_return_sequences=4, **changed) for source in range(5)]
    assert [[one.token_ids for one in each] for each in found] == [
        [one.token_ids for one in each] for each in wanted
    ]
    for each, plain in zip(found, wanted, strict=True):
        assert [one.score for one in each] == pytest.approx([one.score for one in plain], abs=1e-6)
        assert [one.top for one in each] == [one.top for one in plain]


def test_requests_with_phrases_share_a_batch_with_others() -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY, end_bias=1.0), VOCABULARY)
    sets: list[Phrases] = [(), *REQUIRED.values(), ()]
    requests = [
        EngineRequest(rules(phrases, num_beams=4), source_ids=np.array([9]), word_edges=EDGES)
        for phrases in sets
    ]
    together = [one.hypotheses for one in decode(runner, requests)]
    assert together == [searched(phrases, 9, EDGES, num_beams=4) for phrases in sets]


def test_log_probabilities_sum_up_to_the_score() -> None:
    for source in range(5):
        (found,) = searched((((2, 3),), ((4,),)), source, top_log_probs=2)
        assert math.fsum(found.log_probs) == pytest.approx(found.score, abs=1e-4)


def test_phrases_that_do_not_fit_are_refused_at_once() -> None:
    request = EngineRequest(rules((((2, 3, 4),), ((5, 5, 5),))), source_ids=np.array([1]))
    with pytest.raises(InvalidRequest, match="take 6 tokens or more, the output has at most 5"):
        SequenceState(request, lambda event: None)


def test_a_forced_end_token_takes_a_place() -> None:
    phrases = (((2, 3, 4, 5, 2),),)
    assert searched(phrases, num_beams=2)[0].token_ids == (2, 3, 4, 5, 2)
    with pytest.raises(InvalidRequest, match="at most 4"):
        searched(phrases, num_beams=2, forced_eos_token_id=END)


def test_a_phrase_of_banned_tokens_has_an_error() -> None:
    with pytest.raises(InvalidRequest, match="no output of at most 5 tokens"):
        searched((((2, 3),),), bad_words_ids=((3,),))


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 8))
def test_beams_are_divided_among_banks(banks: list[int], width: int) -> None:
    kept = allocate_places(banks, width)
    assert kept == sorted(set(kept))
    assert len(kept) == min(width, len(banks))
    # Of each bank the best, and none is without while another could spare one.
    counts = Counter(banks[place] for place in kept)
    for bank, count in counts.items():
        assert [p for p in kept if banks[p] == bank] == [
            p for p, b in enumerate(banks) if b == bank
        ][:count]
    if len(set(banks)) <= width:
        assert set(counts) == set(banks)
