"""Ranking the beams of many sequences together equals ranking each alone, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.runners.candidates import Candidates
from inference.engine.search.logits_processors import Constraint
from inference.engine.search.protocol import Beams, Continuations, search_inputs

WIDTH, VOCABULARY = 3, 12
VALUES = (0.0, -0.5, -0.5, -1.0, -2.0, -np.inf)  # so few that many are equal
FREE = Constraint()


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    banned = frozenset(draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=4)))
    forced = draw(st.sampled_from([None, None, None, 5]))
    return Constraint(forced=forced, banned=banned)


@st.composite
def some_beams(draw: st.DrawFn) -> Beams | None:
    """Beams in any row order, sometimes fewer than the sequence's rows."""
    if draw(st.integers(0, 4)) == 0:
        return None
    live = draw(st.integers(1, WIDTH))
    rows = draw(st.permutations(range(WIDTH)))[:live]
    scores = sorted(draw(st.lists(st.sampled_from(VALUES[:5]), min_size=live, max_size=live)))
    obeyed = draw(st.sampled_from([[], [draw(constraints()) for _ in range(live)]]))
    missing = WIDTH - live
    return Beams(
        (*rows, *[0] * missing),
        (*scores[::-1], *[-np.inf] * missing),
        obeyed,
        draw(st.sampled_from([2, 6, 9])),
    )


def some_candidates(sequences: int, seed: int, k: int) -> Candidates:
    rng = np.random.default_rng(seed)
    rows = sequences * WIDTH
    ids = np.stack([rng.permutation(VOCABULARY)[:k] for _ in range(rows)])
    log_probs = -np.sort(-rng.choice(VALUES, (rows, k)), axis=1).astype(np.float32)
    return Candidates(ids, log_probs)


def wanted(candidates: Candidates, first: int, beams: Beams) -> list[tuple[int, int, float]]:
    """(parent, token, score) one by one; Python's sort is stable."""
    found = []
    for place, (row, score) in enumerate(zip(beams.rows, beams.scores, strict=True)):
        constraint = beams.constraints[place] if place < len(beams.constraints) else FREE
        if constraint.forced is not None:
            found.append((place, constraint.forced, score))
            continue
        log_probs = candidates.log_probs[first + row]
        for token, log_prob in zip(candidates.ids[first + row], log_probs, strict=True):
            if token not in constraint.banned:
                found.append((place, token, float(np.float32(score) + log_prob)))
    alive = [one for one in found if one[2] > -np.inf]
    return sorted(alive, key=lambda one: -one[2])[: beams.wanted]


@given(
    beams=st.lists(some_beams(), min_size=1, max_size=5),
    seed=st.integers(0, 9999),
    k=st.integers(1, VOCABULARY),
)
def test_each_sequence_gets_the_candidates_it_would_get_alone(
    beams: list[Beams | None], seed: int, k: int
) -> None:
    candidates = some_candidates(len(beams), seed, k)
    untouched = candidates.token_ids.copy(), candidates.log_probs.copy()
    for index, search_input in enumerate(search_inputs(candidates, beams, WIDTH)):
        one = beams[index]
        assert search_input.first == index * WIDTH
        if one is None:
            assert search_input.continuations is None
            continue
        found = list(zip(*search_input.continuations, strict=True))
        assert found == wanted(candidates, search_input.first, one)
    for ours, before in zip((candidates.token_ids, candidates.log_probs), untouched, strict=True):
        assert ours.tolist() == before.tolist()


def test_nan_is_no_continuation() -> None:
    log_probs = np.full((1, 3), np.nan, np.float32)
    beams = Beams((0,), (0.0,), (), 2)
    (search_input,) = search_inputs(Candidates(np.arange(3)[None], log_probs), [beams], 1)
    assert search_input.continuations == Continuations([], [], [])


@pytest.mark.parametrize("rows_each", [1, WIDTH])
def test_first_rows_are_those_of_the_call(rows_each: int) -> None:
    found = search_inputs(some_candidates(4, 1, 2), [None] * 4, rows_each)
    assert [search_input.first for search_input in found] == [
        index * rows_each for index in range(4)
    ]
