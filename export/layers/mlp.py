"""The position-wise feed-forward block (Vaswani 2017 §3.3, arXiv 1706.03762)."""

from __future__ import annotations

from torch import Tensor, nn

from export.layers.activation import activation


class MLP(nn.Module):
    """Up, a non-linearity, down: (…, D) → (…, D)."""

    def __init__(self, width: int, inner_width: int, activation_name: str) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner_width)
        self.activation = activation(activation_name)
        self.down = nn.Linear(inner_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The block without its residual."""
        return self.down(self.activation(self.up(x)))
