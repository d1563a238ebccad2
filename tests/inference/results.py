"""Results of generators for tests."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.generation import FinishReason
from inference.sequences import Finished, Hypothesis, Top


def finished(
    sequences: Sequence[Sequence[int]],
    scores: Sequence[float],
    finish_reasons: Sequence[str] = (),
    prompt_tokens: int = 0,
    *,
    log_probs: Sequence[tuple[float, ...]] = (),
    top: Sequence[tuple[Top, ...]] = (),
    alignments: Sequence[NDArray[np.float32]] = (),
) -> Finished:
    """A result with one hypothesis a sequence; what is left out is as if it was not requested."""
    return Finished(
        tuple(
            Hypothesis(
                tuple(ids),
                scores[rank],
                finish_reasons[rank] if finish_reasons else FinishReason.STOP,
                log_probs[rank] if log_probs else (),
                top[rank] if top else (),
                alignments[rank] if alignments else None,
            )
            for rank, ids in enumerate(sequences)
        ),
        prompt_tokens,
    )
