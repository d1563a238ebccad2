"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · weight over the last dimension, without mean or bias.

    Written with a division and a square root because ONNX Runtime recognises that form and runs it
    as one operator.

    Args:
        offset: Added to the weight as it is used; Gemma stores the weight's distance from 1.
    """

    def __init__(self, width: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        magnitude = (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt()
        weight = self.weight + self.offset if self.offset else self.weight
        return x / magnitude * weight
