"""The choice of tokens as a part of a decoder's graph, and what reads the logits beyond it.

One call computes scores and ranks the best few of each row; rows that need more have their logits
ranked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13 as ops

from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    CellEdits,
    Edit,
    HostLogits,
    Rank,
    select_candidates,
)
from inference.engine.runners.openvino.paged_graph import integers
from inference.engine.runners.ort.logits_graphs import MIN_BLOCKED_VOCABULARY, block_size

COUNT = 8
"""Candidates of each row: greedy search needs one, a beam search twice its beams."""
_MIN_SUMMED_BY_BLOCKS = 100_000
"""Tokens. One float32 sum of 256,206 terms loses 2e-4 with AVX2, which adds eight at a time; of
fewer terms it loses less, and takes a fifth less time than sums of blocks."""


def add_token_choice(model: openvino.Model, vocabulary_size: int) -> openvino.Model:
    """Logits (M, V) → logits, token ids (M, k) and log-probabilities (M, k), best first.

    Of equal scores the lowest id is first. As the graphs in `ort/logits_graphs.py`, whose blocks it
    has; the normaliser is one number a row, so no second tensor of V is written.
    """
    logits = model.get_results()[0].input_value(0)
    count = min(COUNT, vocabulary_size)
    block = block_size(vocabulary_size) or round((vocabulary_size / count) ** 0.5)
    parts: list[Any] = []
    if vocabulary_size < MIN_BLOCKED_VOCABULARY or vocabulary_size // block < count:
        scores, token_ids = _topk(logits, count, "value")
    else:
        scores, token_ids, parts = _by_blocks(logits, count, block, vocabulary_size)
    if vocabulary_size < _MIN_SUMMED_BY_BLOCKS:
        parts = [_one_block(logits)]
    largest = ops.slice(scores, integers([0]), integers([1]), integers([1]), integers([1]))
    total = reduce(ops.add, (_exp_sum(part, largest) for part in parts))
    log_probs = ops.subtract(scores, ops.add(ops.log(total), largest))
    results = [ops.result(each) for each in (logits, token_ids, log_probs)]
    return openvino.Model(results, model.get_parameters(), model.get_friendly_name())


def _exp_sum(part: Any, largest: Any) -> Any:
    """The sum of e^(logit − largest), (M, 1), over blocks of logits, (M, blocks, n)."""
    shifted = ops.exp(ops.subtract(part, ops.unsqueeze(largest, integers([2]))))
    by_block = ops.reduce_sum(shifted, integers([2]), keep_dims=False)
    return ops.reduce_sum(by_block, integers([1]), keep_dims=True)


def _by_blocks(
    logits: Any, count: int, block: int, vocabulary_size: int
) -> tuple[Any, Any, list[Any]]:
    """The best scores, their token ids, and all logits in parts, each (M, blocks, n).

    The best lie in the blocks with the best maxima, of equal ones the first.

    Blocks are ranked by position before their tokens are ranked, so that ties break equally. Tokens
    behind the last whole block are ranked with those of the best: OpenVINO 2026.4 takes 64 ms for
    32 rows of NLLB's 256,206 tokens, which no block divides, and 2 ms in this way.
    """
    blocks, rest = divmod(vocabulary_size, block)
    whole, last = logits, None
    if rest:
        sizes = integers([blocks * block, rest])
        whole, last = ops.variadic_split(logits, integers(1), sizes).outputs()
    cells = ops.reshape(whole, integers([0, blocks, block]), special_zero=True)
    maxima = ops.reduce_max(cells, integers([2]), keep_dims=False)
    _, kept = _topk(maxima, count, "index")
    near = ops.gather(cells, kept, integers(1), batch_dims=1)  # (M, k, block)
    flat = ops.reshape(near, integers([0, count * block]), special_zero=True)
    if last is not None:
        kept = ops.pad(kept, integers([0, 0]), integers([0, 1]), "constant", integers(blocks))
        flat = ops.concat([flat, last], 1)
    scores, place = _topk(flat, count, "value")
    nth = ops.divide(place, integers(block))
    owner = ops.gather_elements(kept, nth, 1)
    skipped = ops.multiply(ops.subtract(owner, nth), integers(block))
    parts = [cells] if last is None else [cells, _one_block(last)]
    return scores, ops.add(place, skipped), parts


def _one_block(values: Any) -> Any:
    """(M, n) → (M, 1, n)."""
    return ops.unsqueeze(values, integers([1]))


def _topk(values: Any, count: int, sort: str) -> tuple[Any, Any]:
    """Values and indices of the largest of each row, (rows, count), sorted by `sort`."""
    found = ops.topk(
        values, integers(count), 1, "max", sort, index_element_type="i64", stable=sort == "value"
    )
    return found.output(0), found.output(1)


_MOST_BANNED = 0.5
"""Of a row's probability; with more, the rest has lost a bit of its precision."""


class ChosenLogits(HostLogits):
    """Logits of a call whose graph has ranked them already.

    Args:
        best: The graph's choice, used while it is enough and no score was edited.
    """

    def __init__(self, values: NDArray[np.float32], rank: Rank, best: Candidates) -> None:
        super().__init__(values, rank)
        self._best, self._is_edited = best, False

    def edit(self, cells: CellEdits) -> NDArray[np.float32]:
        self._is_edited = True
        return super().edit(cells)

    def rank(
        self,
        count: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        best = self._best
        is_enough = count <= best.token_ids.shape[1] and temperatures is None and not with_logits
        if is_enough and not self._is_edited:
            return Candidates(best.token_ids[:, :count], best.log_probs[:, :count])
        return super().rank(count, temperatures, with_logits=with_logits)


def complete_choice(
    logits: NDArray[np.float32],
    best: Candidates,
    rank: Rank,
    row_requests: Sequence[CandidateRequest],
) -> Candidates:
    """Candidates of each row after its own edit: the graph's choice where that is enough.

    The graph and the ranking of the logits sum up in different orders. Which of the two a row gets
    depends on its own request and scores alone, not on what others need.

    Args:
        logits: (M, V); edited in place, and read again by `Candidates.more`.
        best: The graph's choice.
        rank: Ranks rows of logits.
        row_requests: One per row.
    """
    kinds = dict.fromkeys(row_requests)
    ranked: list[int] = []  # rows for which the graph's choice is not enough
    known = dict.fromkeys(kinds, 0)  # of the other rows: how many tokens it is right about
    banned: list[tuple[NDArray[np.intp], Edit]] = []
    for kind in kinds:
        rows = _rows_of(kind, row_requests, is_only=len(kinds) == 1)
        known[kind] = _count_known(kind, best.token_ids.shape[1])
        if kind.count > known[kind]:
            ranked += rows.tolist()
        elif kind.edit is not None:
            is_left = _leave_out(best, logits, rows, kind.edit)
            ranked += rows[~is_left].tolist()
            banned.append((rows[is_left], kind.edit))
    if ranked:
        found = select_candidates(ChosenLogits(logits, rank, best), row_requests)
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
        return rank(logits[row : row + 1], min(count, logits.shape[1]), None)

    return Candidates(best.token_ids[:, :count], best.log_probs[:, :count], more=more)


def _rows_of(
    kind: CandidateRequest, row_requests: Sequence[CandidateRequest], *, is_only: bool
) -> NDArray[np.intp]:
    if is_only:
        return np.arange(len(row_requests))
    return np.array([row for row, request in enumerate(row_requests) if request is kind])


def _count_known(request: CandidateRequest, most: int) -> int:
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
