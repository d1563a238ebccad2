"""Greedy search: the best allowed token, until an end token or the cap."""

from __future__ import annotations

import numpy as np

from serving.engine.choosing import Policy, allowed, normalised
from serving.engine.request import Hypothesis, Request
from serving.engine.runner import Candidates
from serving.engine.search import Advance
from serving.errors import InvalidRequest


class GreedySearch:
    """One row. The score is that of a beam search: log-softmax first, then the rules."""

    def __init__(self, request: Request) -> None:
        self._length_penalty = request.rules.length_penalty
        self._prompt = request.decoder_ids
        self._policy = Policy(request.rules)
        self._tokens: list[int] = []
        self._score = np.float32(0)
        self._constraint = self._policy.constraint(self._prompt, self._tokens)
        self._finish_reason: str | None = None

    @property
    def candidates_needed(self) -> int:
        """One, and one more for every token that is banned now."""
        return 1 + len(self._constraint.banned)

    def advance(self, candidates: Candidates) -> Advance | None:
        """Takes the next token; None when that ended the sequence.

        Raises:
            InvalidRequest: the rules ban every token.
        """
        ids, log_probs = allowed(self._constraint, candidates.token_ids[0], candidates.log_probs[0])
        if not ids:
            raise InvalidRequest("the generation rules ban every token: allow at least one")
        self._tokens.append(ids[0])
        self._score += log_probs[0]
        self._finish_reason = self._policy.finish_reason(
            ids[0], len(self._tokens), self._constraint
        )
        if self._finish_reason:
            return None
        self._constraint = self._policy.constraint(self._prompt, self._tokens)
        return Advance((ids[0],))

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The one finished sequence."""
        assert self._finish_reason is not None
        score = normalised(self._score, len(self._tokens), self._length_penalty)
        return (Hypothesis(tuple(self._tokens), float(score), self._finish_reason),)
