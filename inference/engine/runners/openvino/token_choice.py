"""The choice of tokens as a part of a decoder's graph: the best few of each row.

One call then computes scores and ranks them; what rows need beyond that reads the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from inference.engine.runners.ort.logits_graphs import block_size

COUNT = 8
"""Candidates of each row: greedy search needs one, a beam search twice its beams."""


def add_token_choice(model: openvino.Model, vocabulary_size: int) -> openvino.Model:
    """Logits (M, V) → logits, token ids (M, k) and log-probabilities (M, k), best first.

    Of equal scores the lowest id is first. As the graphs in `ort/topk_graph.py`, whose blocks it
    has; the normaliser is one number a row, so no second tensor of V is written.
    """
    logits = model.get_results()[0].input_value(0)
    count = min(COUNT, vocabulary_size)
    block = block_size(vocabulary_size)
    if block is None or vocabulary_size // block < count:
        scores, token_ids = _topk(logits, count, "value")
        largest = ops.reduce_max(logits, _integers([1]), keep_dims=True)
    else:
        scores, token_ids, largest = _by_blocks(logits, count, vocabulary_size // block, block)
    shifted = ops.exp(ops.subtract(logits, largest))
    total = ops.log(ops.reduce_sum(shifted, _integers([1]), keep_dims=True))
    log_probs = ops.subtract(scores, ops.add(total, largest))
    results = [ops.result(each) for each in (logits, token_ids, log_probs)]
    return openvino.Model(results, model.get_parameters(), model.get_friendly_name())


def _by_blocks(logits: Any, count: int, blocks: int, block: int) -> tuple[Any, Any, Any]:
    """The best lie in the blocks with the best maxima, of equal ones the first.

    Blocks are ranked by position before their tokens are ranked, so that ties break equally.
    """
    cells = ops.reshape(logits, _integers([0, blocks, block]), special_zero=True)
    maxima = ops.reduce_max(cells, _integers([2]), keep_dims=False)
    _, kept = _topk(maxima, count, "index")
    near = ops.gather(cells, kept, _integers(1), batch_dims=1)  # (M, k, block)
    flat = ops.reshape(near, _integers([0, count * block]), special_zero=True)
    scores, place = _topk(flat, count, "value")
    nth = ops.divide(place, _integers(block))
    owner = ops.gather_elements(kept, nth, 1)
    skipped = ops.multiply(ops.subtract(owner, nth), _integers(block))
    largest = ops.reduce_max(maxima, _integers([1]), keep_dims=True)
    return scores, ops.add(place, skipped), largest


def _topk(values: Any, count: int, sort: str) -> tuple[Any, Any]:
    """Values and indices of the largest of each row, (rows, count), sorted by `sort`."""
    found = ops.topk(
        values, _integers(count), 1, "max", sort, index_element_type="i64", stable=sort == "value"
    )
    return found.output(0), found.output(1)


def _integers(value: Any) -> Any:
    return ops.constant(np.array(value, np.int64)).output(0)
