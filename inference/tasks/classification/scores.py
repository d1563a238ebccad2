"""Logits to scores, as the pipelines of `transformers` compute them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
Activation: TypeAlias = Literal["softmax", "sigmoid", "none"]
"""softmax: probabilities among the labels; sigmoid: of each label by itself; none: the logits."""


def activated(logits: Scores, activation: Activation) -> Scores:
    """Scores of the last axis."""
    if activation == "none":
        return logits
    if activation == "sigmoid":
        return np.asarray(np.exp(-np.logaddexp(0, -logits)), dtype=np.float32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)


def best_first(scores: Scores, count: int | None = None) -> list[int]:
    """Indices of a vector's scores, the best first; equal scores in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
