"""Greedy search, and tokens that the request gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest, GreedyRule
from inference.engine.search.logits_processors import (
    Constraint,
    LogitsProcessors,
    TokenRecord,
    TokenTrace,
    apply_length_penalty,
    keep_allowed,
    no_token_left,
)
from inference.engine.search.protocol import Search, SearchInput, StepResult
from inference.generation import FinishReason, Hypothesis


class GreedySearch(Search):
    """One row. The score is that of a beam search: log-softmax first, then bans.

    Penalties and bias edit the logits, as in `transformers`, and so change the probabilities.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._length_penalty = request.rules.length_penalty
        self._end_ids = frozenset(request.rules.eos_token_ids)
        self._policy = LogitsProcessors(request.rules, request.grammar)
        self._history = self._policy.start(request.decoder_ids, request.unscored_token)
        self._trace = TokenTrace(request)
        self._tokens: list[int] = []
        self._records: list[TokenRecord] = []
        self._score = np.float32(0)
        self._finish_reason = self._policy.replay(self._history, request.rules.generated_ids)
        self._tokens += request.rules.generated_ids
        self._apply(self._policy.constraint(self._history))

    @property
    def has_ended(self) -> bool:
        return self._finish_reason is not None

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """One candidate, and one more for every banned token."""
        return self._row_requests

    @property
    def follows_history(self) -> bool:
        return self._policy.follows_history

    def advance(self, search_input: SearchInput) -> StepResult | None:
        candidates, row, _ = search_input
        ids, log_probs = keep_allowed(
            self._constraint, candidates.ids[row], candidates.log_probs[row]
        )
        if not ids:
            raise no_token_left()
        token_id = ids[0]
        self._accept(token_id)
        self._score += log_probs[0]
        record = None
        if self._trace.is_enabled:
            record = self._trace.record(ids, log_probs, candidates, row)
            self._records.append(record)
        if self._ends(token_id):
            return None
        self._constrain_next()
        return StepResult((token_id,), record=record)

    @property
    def greedy_rule(self) -> GreedyRule | None:
        """What the next steps follow; None where tokens are recorded, or decide what follows."""
        is_alike = not self._trace.is_enabled and self.steps_of_rule
        return self._constraint.greedy_rule if is_alike else None

    @property
    def steps_of_rule(self) -> int:
        """How many of the next steps follow `greedy_rule`."""
        return self._policy.alike_after(len(self._tokens))

    def take(self, token_ids: Sequence[int], log_probs: NDArray[np.float32]) -> int | None:
        """Takes tokens chosen by several steps, up to one that ends the sequence.

        Returns:
            How many were taken if that ended the sequence, else None.

        Raises:
            InvalidRequest: the rules ban every token.
        """
        ends = (place for place, token_id in enumerate(token_ids, 1) if token_id in self._end_ids)
        taken = next(ends, len(token_ids))
        if self._constraint.restricts and not (log_probs[:taken] > -np.inf).all():
            raise no_token_left()
        for token_id in token_ids[:taken]:
            self._accept(token_id)
        self._score = sum(log_probs[:taken], self._score)
        if self._ends(token_ids[taken - 1]):
            return taken
        self._constrain_next()
        return None

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        assert self._finish_reason is not None
        score = apply_length_penalty(self._score, len(self._tokens), self._length_penalty)
        found = self._trace.hypothesis(
            self._tokens, float(score), self._finish_reason, self._records
        )
        return (found,)

    def _accept(self, token_id: int) -> None:
        self._tokens.append(token_id)
        self._history.accept(token_id)

    def _ends(self, token_id: int) -> bool:
        """Whether a token, the last one taken, ends the sequence."""
        self._finish_reason = self._policy.finish_reason(
            token_id, len(self._tokens), self._constraint
        )
        return self._finish_reason is not None

    def _constrain_next(self) -> None:
        constraint = self._policy.constraint(self._history)
        if constraint is not self._constraint:
            self._apply(constraint)

    def _apply(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._row_requests = (constraint.row_request(max(1, self._trace.count)),)


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
        score = apply_length_penalty(self._score, self._taken, self._length_penalty)
        found = self._trace.hypothesis(
            self._given, float(score), FinishReason.LENGTH, self._records
        )
        return (found,)
