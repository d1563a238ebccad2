"""Alignments: the engine's attention weights, cut to the tokens that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inference.errors import InternalError, InvalidRequest
from inference.tasks.shared.model_calls import Array

Weights = npt.NDArray[np.float64]

MAX_SOURCE_TOKENS = 1024
"""Of one request: a response holds one number for each pair of source and target token."""

_DECIMALS = 6


def check_size(source_tokens: Sequence[int]) -> None:
    """Raises InvalidRequest when the matrices of a request would be too many or too large."""
    total = sum(source_tokens)
    if total > MAX_SOURCE_TOKENS:
        raise InvalidRequest(
            f"the texts have {total} tokens, at most {MAX_SOURCE_TOKENS} with return_attention: "
            "send several requests",
            field="return_attention",
        )


def weights_of(
    alignment: Array | None, *, rows: int, columns: int | None = None, last: int | None = None
) -> Weights:
    """(rows, columns) of a hypothesis' alignment, padding cut off.

    Args:
        rows: Number of output tokens.
        columns: Number of source tokens.
        last: Number of positions at the end that count: image patches follow the others.

    Raises:
        InternalError: the model returned no alignment.
    """
    if alignment is None:
        raise InternalError("the model returned no alignment: export it again")
    found = np.asarray(alignment, np.float64)[:rows]
    return found[:, -last:] if last is not None else found[:, :columns]


def block_diagonal(blocks: Sequence[Weights]) -> list[list[float]]:
    """Rows of a block-diagonal matrix: each sentence attends to its own source alone."""
    shape = np.sum([block.shape for block in blocks], axis=0)
    whole = np.zeros(shape)
    row = column = 0
    for block in blocks:
        height, width = block.shape
        whole[row : row + height, column : column + width] = block
        row, column = row + height, column + width
    rows: list[list[float]] = whole.round(_DECIMALS).tolist()
    return rows
