"""Between a runner's logits and its answer: edits before the ranking, and what follows from them.

Every runner ranks in its own way and shares the rest. Edits touch a few numbers of the rows that
row_request; whatever the vocabulary's size, nothing as wide is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serving.engine.runners.protocol import CandidateRequest, Candidates, Edit

Logits = NDArray[np.float32]
Rank = Callable[[Logits, int, "NDArray[np.float32] | None"], Candidates]
"""(rows, V) logits, k <= V, (rows, 1) temperatures → the k best, with masses if temperatures."""


def select_candidates(
    logits: Logits,
    row_requests: Sequence[CandidateRequest],
    rank: Rank,
    emitted: NDArray[np.float32] | None = None,
) -> Candidates:
    """What rows may take next, each after its own edit.

    Args:
        logits: (rows, V), contiguous; edited in place, and read again by `Candidates.more`.
        row_requests: One a row.
    """
    kinds = set(row_requests)  # by identity, so plain rows cost nothing each
    count = max(row_request.count for row_request in kinds)
    folds = (
        _edit(logits, row_requests)
        if any(row_request.edit is not None for row_request in kinds)
        else []
    )
    temperatures = None
    if any(row_request.temperature is not None for row_request in kinds):
        temperatures = np.array(
            [[row_request.temperature or 1.0] for row_request in row_requests],
            np.float32,
        )
    found = rank(logits, min(count, logits.shape[1]), temperatures)
    for fold in folds:
        fold.into(found, logits)

    def more(row: int, count: int) -> Candidates:
        return rank(logits[row : row + 1], min(count, logits.shape[1]), None)

    return replace(found, emitted=emitted, more=more)


def processed(edit: Edit, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """The edit's tokens' new scores, (…, n) float32."""
    biased = scores + edit.bias
    penalised = np.where(biased < 0, biased * edit.factor, biased / edit.factor)
    return penalised + edit.offset


@dataclass(frozen=True)
class _Fold:
    """A row whose log-probabilities are edited: its edited tokens stand aside while it is ranked.

    Attributes:
        raw: (n,) logits of the edited tokens; minus infinity stands in their place.
    """

    row: int
    edit: Edit
    raw: NDArray[np.float32]

    def into(self, found: Candidates, logits: Logits) -> None:
        """Merges the edited tokens into the row's ranking, with `transformers`' scores."""
        ids = found.token_ids[self.row]
        rest = logits[self.row, ids]
        rest_mass = rest[0] - found.log_probs[self.row, 0] if rest[0] > -np.inf else rest[0]
        mass = np.logaddexp(rest_mass, _log_sum_exp(self.raw))
        edited = processed(self.edit, self.raw - mass)
        others = rest - mass
        if self.edit.renormalises:
            total = np.logaddexp(rest_mass - mass, _log_sum_exp(edited))
            edited, others = edited - total, others - total
        stands = rest > -np.inf  # an edited token stands aside, or is banned for good
        all_ids = np.concatenate([ids[stands], self.edit.token_ids])
        scores = np.concatenate([others[stands], edited]).astype(np.float32)
        order = np.lexsort((all_ids, -scores))[: len(ids)]
        found.token_ids[self.row, : len(order)] = all_ids[order]
        found.log_probs[self.row] = -np.inf
        found.log_probs[self.row, : len(order)] = scores[order]


def _edit(logits: Logits, row_requests: Sequence[CandidateRequest]) -> list[_Fold]:
    """Edits logits in place; log-probabilities need the ranking first, and are returned."""
    rows_of: dict[Edit, list[int]] = {}
    for row, row_request in enumerate(row_requests):
        if row_request.edit is not None:
            rows_of.setdefault(row_request.edit, []).append(row)
    folds = []
    for edit, rows in rows_of.items():
        cells = np.array(rows)[:, None], edit.token_ids
        raw = logits[cells]
        if edit.is_of_log_probs:
            logits[cells] = -np.inf
            folds += [_Fold(row, edit, one) for row, one in zip(rows, raw, strict=True)]
        else:
            logits[cells] = processed(edit, raw)
    return folds


def _log_sum_exp(values: NDArray[np.float32]) -> np.float64:
    return np.float64(np.logaddexp.reduce(values.astype(np.float64)))
