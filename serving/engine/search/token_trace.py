"""What is remembered of each chosen token when a request asks: log-probabilities, alignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.engine.request import EngineRequest, Hypothesis
from serving.engine.runners.candidates import Candidates

Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TokenRecord:
    """One chosen token's surroundings.

    Attributes:
        log_prob: Of the token.
        top: The best tokens of its place, and their log-probabilities.
        seen: (S,) what the model looked at, where `step` emits it.
    """

    log_prob: float
    top: Top
    seen: NDArray[np.float32] | None


class TokenTrace:
    """Makes records for a request that asked for them, and hypotheses of them."""

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        self._top = rules.top_log_probs
        self._aligns = rules.return_alignment
        self._source = None if request.source_ids is None else len(request.source_ids)
        self.is_enabled = self._top is not None or self._aligns

    @property
    def count(self) -> int:
        """Candidates that a place's best tokens need."""
        return self._top or 0

    def record(
        self,
        ids: Sequence[int],
        log_probs: NDArray[np.float32],
        candidates: Candidates,
        row: int,
        rank: int = 0,
    ) -> TokenRecord:
        """The record of one token; call only if `is_enabled`.

        Args:
            ids: The row's allowed candidates, best first; `log_probs` are theirs.
            rank: Place of the token among them.
        """
        best = zip(ids[: self.count], log_probs[: self.count].tolist(), strict=True)
        seen = None
        if self._aligns and candidates.emitted is not None:
            seen = candidates.emitted(row)[: self._source].copy()
        return TokenRecord(float(log_probs[rank]), tuple(best), seen)

    def hypothesis(
        self,
        token_ids: Sequence[int],
        score: float,
        finish_reason: str,
        records: Sequence[TokenRecord],
    ) -> Hypothesis:
        """A finished continuation; `records` are its tokens', or none."""
        seen = [record.seen for record in records if record.seen is not None]
        told = records if self._top is not None else ()
        return Hypothesis(
            tuple(token_ids),
            score,
            finish_reason,
            log_probs=tuple(record.log_prob for record in told),
            top=tuple(record.top for record in told),
            alignment=np.stack(seen) if seen else None,
        )
