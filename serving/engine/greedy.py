"""Greedy search: the best allowed token, until an end token or the cap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.engine.choosing import Constraint, Policy, allowed, normalised
from serving.engine.ranking import Offer
from serving.engine.request import Hypothesis, Request
from serving.engine.runner import Ask
from serving.engine.search import Advance
from serving.engine.trail import Mark, Trail
from serving.errors import InvalidRequest


class GreedySearch:
    """One row. The score is that of a beam search: log-softmax first, then bans.

    Penalties and bias change the logits themselves, as in `transformers`, and so the probabilities.
    """

    def __init__(self, request: Request) -> None:
        self._length_penalty = request.rules.length_penalty
        self._prompt = request.decoder_ids
        self._policy = Policy(request.rules)
        self._trail = Trail(request)
        self._tokens: list[int] = []
        self._marks: list[Mark] = []
        self._score = np.float32(0)
        self._finish_reason: str | None = None
        self._obey(self._policy.constraint(self._prompt, self._tokens))

    @property
    def asks(self) -> Sequence[Ask]:
        """One candidate, and one more for every token that is dropped."""
        return self._asks

    @property
    def beams(self) -> None:
        """One row is ranked already."""
        return None

    def advance(self, offer: Offer) -> Advance | None:
        """Takes the next token; None when that ended the sequence.

        Raises:
            InvalidRequest: the rules ban every token.
        """
        candidates, row, _ = offer
        ids, log_probs = allowed(self._constraint, candidates.ids[row], candidates.log_probs[row])
        if not ids:
            raise InvalidRequest("the generation rules ban every token: allow at least one")
        token_id = ids[0]
        self._tokens.append(token_id)
        self._score += log_probs[0]
        mark = None
        if self._trail.is_kept:
            mark = self._trail.mark(ids, log_probs, candidates, row)
            self._marks.append(mark)
        self._finish_reason = self._policy.finish_reason(
            token_id, len(self._tokens), self._constraint
        )
        if self._finish_reason:
            return None
        constraint = self._policy.constraint(self._prompt, self._tokens)
        if constraint is not self._constraint:
            self._obey(constraint)
        return Advance((token_id,), mark=mark)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The one finished sequence."""
        assert self._finish_reason is not None
        score = normalised(self._score, len(self._tokens), self._length_penalty)
        found = self._trail.hypothesis(self._tokens, float(score), self._finish_reason, self._marks)
        return (found,)

    def _obey(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._asks = (constraint.ask(max(1, self._trail.count)),)
