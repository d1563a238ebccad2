"""Log-probabilities and alignments of generated tokens, recorded for requests that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import Candidates
from inference.engine.search.request import EngineRequest
from inference.sequences import Hypothesis

Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TokenRecord:
    """What is recorded of one generated token.

    Attributes:
        log_prob: Of the token.
        top: The best tokens of its position, and their log-probabilities.
        emitted: (S,) its EMIT output, if alignments are requested and `step` has one.
    """

    log_prob: float
    top: Top
    emitted: NDArray[np.float32] | None


class TokenTrace:
    """Makes records for a request, and hypotheses of records.

    Attributes:
        is_enabled: Whether the request needs records.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        self._top = rules.top_log_probs
        self._aligns = rules.return_alignment
        self._source = None if request.source_ids is None else len(request.source_ids)
        self.is_enabled = self._top is not None or self._aligns

    @property
    def count(self) -> int:
        """Candidates that a position's best tokens need."""
        return self._top or 0

    def record(
        self,
        ids: Sequence[int],
        log_probs: NDArray[np.float32],
        candidates: Candidates,
        row: int,
        rank: int = 0,
    ) -> TokenRecord:
        """The record of one token; requires `is_enabled`.

        Args:
            ids: The row's allowed candidates, best first; `log_probs` are theirs.
            rank: Index of the token among them.
        """
        best = zip(ids[: self.count], log_probs[: self.count].tolist(), strict=True)
        emitted = None
        if self._aligns and candidates.emitted is not None:
            emitted = candidates.emitted(row)[: self._source].copy()
        return TokenRecord(float(log_probs[rank]), tuple(best), emitted)

    def hypothesis(
        self,
        token_ids: Sequence[int],
        score: float,
        finish_reason: str,
        records: Sequence[TokenRecord],
    ) -> Hypothesis:
        """A finished hypothesis; `records` are those of its tokens, or empty."""
        emitted = [record.emitted for record in records if record.emitted is not None]
        listed = records if self._top is not None else ()
        return Hypothesis(
            tuple(token_ids),
            score,
            finish_reason,
            log_probs=tuple(record.log_prob for record in listed),
            top=tuple(record.top for record in listed),
            alignment=np.stack(emitted) if emitted else None,
        )
