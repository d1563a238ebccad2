"""What tokens looked at: the engine's weights, cut to the tokens that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from serving.errors import InternalError, InvalidRequest
from serving.tasks.call import Generated

Weights = npt.NDArray[np.float64]

MAX_SOURCE_TOKENS = 1024
"""Of one request: an answer holds a number for each of them and each target token."""

_DECIMALS = 6


def check_size(source_tokens: Sequence[int]) -> None:
    """Raises InvalidRequest when the matrices of a request would be too many or too large."""
    total = sum(source_tokens)
    if total > MAX_SOURCE_TOKENS:
        raise InvalidRequest(
            f"the texts have {total} tokens, with return_alignment at most {MAX_SOURCE_TOKENS} "
            "are taken: send several requests",
            field="return_alignment",
        )


def weights_of(
    generated: Generated, *, columns: int | None = None, last: int | None = None
) -> Weights:
    """(tokens, columns) of the best hypothesis, padding cut off.

    Args:
        columns: The source's tokens.
        last: How many positions at the end count: patches stand behind the others.

    Raises:
        InternalError: the model did not tell.
    """
    if not generated.alignments:
        raise InternalError("the model told no alignment: export it again")
    rows = np.asarray(generated.alignments[0], np.float64)[: len(generated.sequences[0])]
    return rows[:, -last:] if last is not None else rows[:, :columns]


def side_by_side(blocks: Sequence[Weights]) -> list[list[float]]:
    """Rows of a matrix with the blocks on its diagonal: a sentence looks at itself alone."""
    shape = np.sum([block.shape for block in blocks], axis=0)
    whole = np.zeros(shape)
    row = column = 0
    for block in blocks:
        height, width = block.shape
        whole[row : row + height, column : column + width] = block
        row, column = row + height, column + width
    rows: list[list[float]] = whole.round(_DECIMALS).tolist()
    return rows
