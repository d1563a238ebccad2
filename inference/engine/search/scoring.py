"""Tokens that the request gives: their log-probabilities are recorded, none is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.engine.runners.candidates import CandidateRequest
from inference.engine.search.logits_processors import normalised
from inference.engine.search.protocol import Search, SearchInput, StepResult
from inference.engine.search.request import EngineRequest
from inference.engine.search.token_trace import TokenRecord, TokenTrace
from inference.generation import FinishReason
from inference.sequences import Hypothesis


class ForcedDecoding(Search):
    """One row that takes the request's `given_ids` in order and ends with the last of them.

    Log-probabilities are those of the model, before penalties, bias and bans.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        self._length_penalty = rules.length_penalty
        self._given = rules.given_ids[: rules.max_new_tokens]
        self._trace = TokenTrace(request)
        self._records: list[TokenRecord] = []
        self._taken = 0
        self._score = np.float32(0)

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """The next given token, and the best ones where they are requested."""
        return self.next_requests(1)

    def next_requests(self, count: int) -> tuple[CandidateRequest, ...]:
        """What each of the next steps needs; at most as many as there are given tokens left."""
        best, following = max(1, self._trace.count), self._given[self._taken :][:count]
        return tuple(CandidateRequest(best, given=(token_id,)) for token_id in following)

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Takes the next given token; None after the last one."""
        candidates, row, _ = search_input
        token_id = self._given[self._taken]
        log_prob = candidates.given[row][0]
        self._taken += 1
        self._score += log_prob
        record = None
        if self._trace.is_enabled:
            best = self._trace.record(
                candidates.ids[row], candidates.log_probs[row], candidates, row
            )
            record = TokenRecord(float(log_prob), best.top, best.emitted)
            self._records.append(record)
        return None if self._taken == len(self._given) else StepResult((token_id,), record=record)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The given tokens."""
        score = normalised(self._score, self._taken, self._length_penalty)
        found = self._trace.hypothesis(
            self._given, float(score), FinishReason.LENGTH, self._records
        )
        return (found,)
