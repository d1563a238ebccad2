"""The engine's ranking of logits, by PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.runners.candidates import Candidates


def rank(
    logits: NDArray[np.float32], k: int, temperatures: NDArray[np.float32] | None
) -> Candidates:
    """The k best of each row, of equal ones the lowest id first; see `edits.Rank`."""
    scores = torch.from_numpy(logits)
    order = _best(scores, k)
    log_probs = scores.log_softmax(dim=-1).gather(1, order)
    masses = None
    if temperatures is not None:
        below = scores - scores.amax(dim=-1, keepdim=True)
        masses = (below / torch.from_numpy(temperatures)).exp().sum(dim=-1).numpy()
    return Candidates(order.numpy(), log_probs.numpy(), masses)


def _best(scores: Tensor, k: int) -> Tensor:
    """Ids of the k best of each row, (rows, k), of equal ones the lowest first.

    `topk` chooses among equal scores as it likes: it gives the threshold alone.
    """
    thresholds = scores.topk(k, dim=-1).values[:, -1:]
    chosen = []
    for row, is_best in zip(scores, ~(scores < thresholds), strict=True):
        ids = is_best.nonzero()[:, 0]
        order = row[ids].sort(descending=True, stable=True).indices[:k]
        chosen.append(ids[order])
    return torch.stack(chosen)
