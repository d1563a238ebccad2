"""The position-wise feed-forward block (Vaswani 2017 §3.3, arXiv 1706.03762), plain and gated."""

from __future__ import annotations

from torch import Tensor, nn

from export.layers.activation import activation


class MLP(nn.Module):
    """Up, a non-linearity, down: (…, D) → (…, D)."""

    def __init__(
        self, width: int, inner_width: int, activation_name: str, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner_width, bias=bias)
        self.activation = activation(activation_name)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The block without its residual."""
        return self.down(self.activation(self.up(x)))


class GatedMLP(MLP):
    """A second projection up, behind the non-linearity, multiplies the first (Shazeer 2020,
    "GLU Variants Improve Transformer", arXiv 2002.05202): (…, D) → (…, D).
    """

    def __init__(
        self, width: int, inner_width: int, activation_name: str, *, bias: bool = False
    ) -> None:
        super().__init__(width, inner_width, activation_name, bias=bias)
        self.gate = nn.Linear(width, inner_width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The block without its residual."""
        return self.down(self.activation(self.gate(x)) * self.up(x))
