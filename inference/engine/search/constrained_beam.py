"""Beam search whose results contain phrases: dynamic beam allocation.

Post & Vilar 2018 (arXiv 1804.06609): beside the best continuations of all beams, each beam is
continued by every token that begins or continues a phrase it lacks. Continuations compete with
those that have come equally far (a bank), and the beam is divided among the banks. A hypothesis
ends only when all phrases are met, and none runs on that has too few tokens left for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inference.engine.runners.candidates import CandidateRequest
from inference.engine.search.beam import BeamSearch
from inference.engine.search.phrases import PhraseTracker, State
from inference.engine.search.protocol import Continuations, SearchInput, StepResult
from inference.engine.search.request import EngineRequest
from inference.engine.search.token_trace import TokenRecord
from inference.errors import InvalidRequest
from inference.processing.words import WordEdges


class _Ranked(NamedTuple):
    """A continuation of a beam, and the state that it leads to."""

    score: float
    parent: int
    token_id: int
    state: State


class ConstrainedBeamSearch(BeamSearch):
    """`BeamSearch` over hypotheses that contain the rules' `force_words_ids`.

    Without phrases it would choose what `BeamSearch` chooses.

    Raises:
        InvalidRequest: the phrases have more tokens than the output may have.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        tokens = (max(map(max, spellings)) for spellings in rules.force_words_ids)
        edges = request.word_edges or WordEdges.none(1 + max(tokens))
        self._tracker = PhraseTracker(rules.force_words_ids, edges)
        self._states = [self._tracker.start]
        # A forced end token takes the last place.
        self._places = rules.max_new_tokens - (rules.forced_eos_token_id is not None)
        if self._tracker.total > self._places:
            raise InvalidRequest(
                f"the required phrases take {self._tracker.total} tokens or more, the output has "
                f"at most {self._places}: require less",
                field="force_words_ids",
            )
        super().__init__(request)

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Those of a beam search, with the tokens that bring a beam's phrases further."""
        requests = list(super().row_requests)
        for row, state, constraint in zip(
            self._beams.rows, self._states, self._constraints, strict=False
        ):
            given = self._tracker.next_tokens(state)
            if given and constraint.forced is None:
                requests[row] = replace(requests[row], given=given)
        return requests

    @property
    def beams(self) -> None:
        """None: its beams are ranked by banks, in `advance`."""
        return None

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Chooses the next beams; None when no beam can improve the result.

        Raises:
            InvalidRequest: the rules ban every token, or no output contains all phrases.
        """
        ranked = self._ranked(search_input)
        length = len(self._steps) + 1
        is_last = length >= self._rules.max_new_tokens
        whole, running = [], []
        for one in ranked:
            ends = one.token_id in self._ends
            remaining = self._tracker.remaining(one.state)
            if not remaining:
                whole.append(one)
            if not ends and not is_last and remaining <= self._places - length:
                running.append(one)
        self._end(_continuations(whole), length, search_input)
        chosen = self._allocate(running)
        if chosen and not self._is_settled(chosen[0].score, length):
            self._states = [one.state for one in chosen]
            return self._continue(_continuations(chosen), range(len(chosen)), search_input)
        if not self._finished:
            raise InvalidRequest(
                f"no output of at most {self._rules.max_new_tokens} tokens with all required "
                "phrases was found: require less, or ask for more beams",
                field="force_words_ids",
            )
        return None

    def _ranked(self, search_input: SearchInput) -> list[_Ranked]:
        """All continuations, best first; those that end a hypothesis too early are left out."""
        candidates, first, _ = search_input
        found: list[_Ranked] = []
        for parent, (row, score, state, constraint) in enumerate(
            zip(self._beams.rows, self._beams.scores, self._states, self._constraints, strict=False)
        ):
            if constraint.forced is not None:
                options = {constraint.forced: np.float32(0)}
            else:
                place = first + row
                given = self._tracker.next_tokens(state)
                options = dict(zip(given, candidates.given.get(place, ()), strict=True))
                # Of a token that is both, the score of the ranking stands.
                options |= zip(candidates.ids[place], candidates.log_probs[place], strict=True)
            for token, log_prob in options.items():
                if token in constraint.banned or not log_prob > -np.inf:
                    continue
                if token in self._ends:
                    if self._tracker.remaining(state):
                        continue
                    following = state
                else:
                    following = self._tracker.follow(state, token)
                total = float(np.float32(score) + log_prob)
                found.append(_Ranked(total, parent, token, following))
        found.sort(key=lambda one: -one.score)
        return found

    def _allocate(self, running: Sequence[_Ranked]) -> list[_Ranked]:
        """The next beams, best first: as many of each bank as it may have."""
        total = self._tracker.total
        banks = [max(0, total - self._tracker.remaining(one.state)) for one in running]
        return [running[index] for index in allocated(banks, self._width)]

    def _record(self, best: Continuations, index: int, search_input: SearchInput) -> TokenRecord:
        """The record of one continuation's token, which need not be among the best ones."""
        parent, token_id = best.parents[index], best.token_ids[index]
        row = search_input.first + self._beams.rows[parent]
        candidates = search_input.candidates
        if token_id in candidates.ids[row] or self._constraints[parent].forced is not None:
            return super()._record(best, index, search_input)
        given = self._tracker.next_tokens(self._states[parent])
        log_prob = candidates.given[row][given.index(token_id)]
        record = self._trace.record(candidates.ids[row], candidates.log_probs[row], candidates, row)
        return TokenRecord(float(log_prob), record.top, record.emitted)


def allocated(banks: Sequence[int], width: int) -> list[int]:
    """Places of the continuations that become beams, in order.

    Every bank that has continuations gets an equal share; what a bank leaves goes to the others'
    best. With more banks than beams, those that have come farthest get one each.

    Args:
        banks: Of the continuations, best first.
        width: Beams.
    """
    places: dict[int, list[int]] = {}
    for place, bank in enumerate(banks):
        places.setdefault(bank, []).append(place)
    share = max(1, width // max(1, len(places)))
    kept: list[int] = []
    for bank in sorted(places, reverse=True)[:width]:
        kept += places[bank][:share]
    kept_set = set(kept)
    others = (place for place in range(len(banks)) if place not in kept_set)
    kept += [place for place, _ in zip(others, range(width - len(kept)), strict=False)]
    return sorted(kept)


def _continuations(ranked: Sequence[_Ranked]) -> Continuations:
    return Continuations(
        [one.parent for one in ranked],
        [one.token_id for one in ranked],
        [one.score for one in ranked],
    )
