"""What is remembered of each chosen token when a request asks: log-probabilities, alignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.engine.request import Hypothesis, Request
from serving.engine.runner import Candidates

Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Mark:
    """One chosen token's surroundings.

    Attributes:
        log_prob: Of the token.
        top: The best tokens of its place, and their log-probabilities.
        seen: (S,) what the model looked at, where `step` emits it.
    """

    log_prob: float
    top: Top
    seen: NDArray[np.float32] | None


class Trail:
    """Makes marks for a request that asked for them, and hypotheses of them."""

    def __init__(self, request: Request) -> None:
        rules = request.rules
        self._top = rules.top_log_probs
        self._aligns = rules.return_alignment
        self._source = None if request.source_ids is None else len(request.source_ids)
        self.is_kept = self._top is not None or self._aligns

    @property
    def count(self) -> int:
        """Candidates that a place's best tokens need."""
        return self._top or 0

    def mark(
        self,
        ids: Sequence[int],
        log_probs: NDArray[np.float32],
        candidates: Candidates,
        row: int,
        rank: int = 0,
    ) -> Mark:
        """The mark of one token; call only if `is_kept`.

        Args:
            ids: The row's allowed candidates, best first; `log_probs` are theirs.
            rank: Place of the token among them.
        """
        best = zip(ids[: self.count], log_probs[: self.count].tolist(), strict=True)
        is_seen = self._aligns and candidates.emitted is not None
        seen = candidates.emitted[row, : self._source].copy() if is_seen else None  # type: ignore[index]
        return Mark(float(log_probs[rank]), tuple(best), seen)

    def hypothesis(
        self, token_ids: Sequence[int], score: float, finish_reason: str, marks: Sequence[Mark]
    ) -> Hypothesis:
        """A finished continuation; `marks` are its tokens', or none."""
        seen = [mark.seen for mark in marks if mark.seen is not None]
        told = marks if self._top is not None else ()
        return Hypothesis(
            tuple(token_ids),
            score,
            finish_reason,
            log_probs=tuple(mark.log_prob for mark in told),
            top=tuple(mark.top for mark in told),
            alignment=np.stack(seen) if seen else None,
        )
