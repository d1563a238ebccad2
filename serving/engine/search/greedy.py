"""Greedy search: the best allowed token, until an end token or the cap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.engine.request import EngineRequest, Hypothesis
from serving.engine.runners.candidates import CandidateRequest
from serving.engine.search.logits_processors import (
    Constraint,
    LogitsProcessors,
    allowed,
    normalised,
)
from serving.engine.search.protocol import StepResult
from serving.engine.search.ranking import SearchInput
from serving.engine.search.token_trace import TokenRecord, TokenTrace
from serving.errors import InvalidRequest


class GreedySearch:
    """One row. The score is that of a beam search: log-softmax first, then bans.

    Penalties and bias edit the logits, as in `transformers`, and so change the probabilities.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._length_penalty = request.rules.length_penalty
        self._prompt = request.decoder_ids
        self._policy = LogitsProcessors(request.rules)
        self._trace = TokenTrace(request)
        self._tokens: list[int] = []
        self._records: list[TokenRecord] = []
        self._score = np.float32(0)
        self._finish_reason: str | None = None
        self._apply(self._policy.constraint(self._prompt, self._tokens))

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """One candidate, and one more for every banned token."""
        return self._row_requests

    @property
    def beams(self) -> None:
        """None: one row needs no joint ranking."""
        return None

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Takes the next token; None when that ended the sequence.

        Raises:
            InvalidRequest: the rules ban every token.
        """
        candidates, row, _ = search_input
        ids, log_probs = allowed(self._constraint, candidates.ids[row], candidates.log_probs[row])
        if not ids:
            raise InvalidRequest("the generation rules ban every token: allow at least one")
        token_id = ids[0]
        self._tokens.append(token_id)
        self._score += log_probs[0]
        record = None
        if self._trace.is_enabled:
            record = self._trace.record(ids, log_probs, candidates, row)
            self._records.append(record)
        self._finish_reason = self._policy.finish_reason(
            token_id, len(self._tokens), self._constraint
        )
        if self._finish_reason:
            return None
        constraint = self._policy.constraint(self._prompt, self._tokens)
        if constraint is not self._constraint:
            self._apply(constraint)
        return StepResult((token_id,), record=record)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The one finished sequence."""
        assert self._finish_reason is not None
        score = normalised(self._score, len(self._tokens), self._length_penalty)
        found = self._trace.hypothesis(
            self._tokens, float(score), self._finish_reason, self._records
        )
        return (found,)

    def _apply(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._row_requests = (constraint.row_request(max(1, self._trace.count)),)
