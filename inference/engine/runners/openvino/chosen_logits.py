"""Candidates of a call: the graph's choice where that is enough, else a ranking of the logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    CellEdits,
    Edit,
    HostLogits,
    select_candidates,
)
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder, DecoderCall

_MOST_BANNED = 0.5
"""Of a row's probability; with more, the rest has lost a bit of its precision."""


class ChosenLogits(HostLogits):
    """Logits of a call whose graph has ranked them already.

    Args:
        best: The graph's choice, used while it is enough and no score was edited.
    """

    def __init__(
        self, decoder: CompiledDecoder, values: NDArray[np.float32], best: Candidates
    ) -> None:
        super().__init__(values, decoder.rank)
        self._best, self._is_edited = best, False

    def edit(self, cells: CellEdits) -> NDArray[np.float32]:
        """See `Logits.edit`."""
        self._is_edited = True
        return super().edit(cells)

    def rank(
        self,
        count: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        """See `Logits.rank`."""
        best = self._best
        is_enough = count <= best.token_ids.shape[1] and temperatures is None and not with_logits
        if is_enough and not self._is_edited:
            return Candidates(best.token_ids[:, :count], best.log_probs[:, :count])
        return super().rank(count, temperatures, with_logits=with_logits)


def candidates_of(
    decoder: CompiledDecoder, call: DecoderCall, row_requests: Sequence[CandidateRequest]
) -> Candidates:
    """Candidates of a call's scored tokens, each after its own edit.

    The graph and the ranking of the logits sum up in different orders. Which of the two a row gets
    depends on its own request and scores alone, not on what others need.
    """
    logits, best = call.outputs()
    kinds = dict.fromkeys(row_requests)
    ranked: list[int] = []  # rows for which the graph's choice is not enough
    known = dict.fromkeys(kinds, 0)  # of the other rows: how many tokens it is right about
    banned: list[tuple[NDArray[np.intp], Edit]] = []
    for kind in kinds:
        rows = _rows_of(kind, row_requests, is_only=len(kinds) == 1)
        known[kind] = _known(kind, best.token_ids.shape[1])
        if kind.count > known[kind]:
            ranked += rows.tolist()
        elif kind.edit is not None:
            is_left = _leave_out(best, logits, rows, kind.edit)
            ranked += rows[~is_left].tolist()
            banned.append((rows[is_left], kind.edit))
    if ranked:
        found = select_candidates(ChosenLogits(decoder, logits, best), row_requests)
        unranked = set(range(len(row_requests))).difference(ranked)
        for kind in kinds:
            others = [row for row in unranked if row_requests[row] is kind]
            count = min(known[kind], found.token_ids.shape[1])
            found.token_ids[others, :count] = best.token_ids[others, :count]
            found.log_probs[others, :count] = best.log_probs[others, :count]
        return found
    for rows, edit in banned:  # for `more`
        logits[rows[:, None], edit.token_ids] = -np.inf
    count = max(kind.count for kind in kinds)

    def more(row: int, count: int) -> Candidates:
        return decoder.rank(logits[row : row + 1], min(count, decoder.vocabulary_size), None)

    return Candidates(best.token_ids[:, :count], best.log_probs[:, :count], more=more)


def _rows_of(
    kind: CandidateRequest, row_requests: Sequence[CandidateRequest], *, is_only: bool
) -> NDArray[np.intp]:
    if is_only:
        return np.arange(len(row_requests))
    return np.array([row for row, request in enumerate(row_requests) if request is kind])


def _known(request: CandidateRequest, most: int) -> int:
    """Of the graph's choice of so many tokens, those that are the best after the row's edit.

    None, where an edit does more than ban a few tokens, or where the logits are read.
    """
    if request.temperature is not None or request.given:
        return 0
    if request.edit is None:
        return most
    return max(0, most - len(request.edit.token_ids)) if request.edit.only_bans else 0


def _leave_out(
    best: Candidates, logits: NDArray[np.float32], rows: NDArray[np.intp], edit: Edit
) -> NDArray[np.bool_]:
    """Moves banned tokens to the end of the choice of some rows, with minus infinity.

    The others share the banned probability, unless the edit is of log-probabilities that are not
    normalised again.

    Returns:
        (rows,) where it did: where most of the probability is banned, what is left of it is
        known too roughly.
    """
    ids, log_probs = best.token_ids[rows], best.log_probs[rows]
    first = logits[rows, ids[:, 0]] - log_probs[:, 0]  # the normaliser
    mass = np.exp(logits[rows[:, None], edit.token_ids] - first[:, None]).sum(1)
    is_left: NDArray[np.bool_] = mass < _MOST_BANNED
    is_banned = (ids[:, :, None] == edit.token_ids).any(2)
    order = np.argsort(is_banned, axis=1, kind="stable")
    if edit.renormalises or not edit.is_of_log_probs:
        log_probs -= np.log1p(-np.minimum(mass, _MOST_BANNED))[:, None]
    log_probs[is_banned] = -np.inf
    kept = rows[is_left]
    best.token_ids[kept] = np.take_along_axis(ids, order, 1)[is_left]
    best.log_probs[kept] = np.take_along_axis(log_probs, order, 1)[is_left]
    return is_left
