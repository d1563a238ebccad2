"""Batch normalisation (Ioffe & Szegedy 2015, arXiv 1502.03167) by the statistics of training.

Behind a linear layer or a convolution it is folded into their weights for export: one operator less
on every activation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

EPSILON = 1e-5


class BatchNorm(nn.Module):
    """(…, D) → (…, D), each channel by its own mean and variance."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps = EPSILON
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    @property
    def scale(self) -> Tensor:
        """What each channel is multiplied by."""
        return self.weight * (self.running_var + self.eps).rsqrt()

    @property
    def shift(self) -> Tensor:
        """What is added to each channel afterwards."""
        return self.bias - self.running_mean * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Channels last."""
        return x * self.scale + self.shift


class NormedLinear(nn.Module):
    """A linear layer without bias, normalised: (…, D) → (…, D')."""

    packed_weight: Tensor
    packed_bias: Tensor

    def __init__(self, width: int, output_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, output_width, bias=False)
        self.norm = BatchNorm(output_width)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        if is_in_onnx_export():
            return functional.linear(x, self.packed_weight, self.packed_bias)
        return self.norm(self.linear(x))

    def pack(self) -> None:
        """Folds the norm into weights and a bias; called once before export."""
        weight = self.linear.weight * self.norm.scale[:, None]
        self.register_buffer("packed_weight", weight.detach(), persistent=False)
        self.register_buffer("packed_bias", self.norm.shift.detach(), persistent=False)


class NormedConvolution(nn.Module):
    """A convolution without bias, normalised: (B, D, h, w) → (B, D', h', w')."""

    packed_weight: Tensor
    packed_bias: Tensor

    def __init__(self, width: int, output_width: int, kernel: int, stride: int, pad: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, output_width, kernel, stride, pad, bias=False)
        self.norm = BatchNorm(output_width)

    def forward(self, x: Tensor) -> Tensor:
        """Channels first."""
        if is_in_onnx_export():
            stride, padding = self.convolution.stride, self.convolution.padding
            return functional.conv2d(x, self.packed_weight, self.packed_bias, stride, padding)
        return self.norm(self.convolution(x).movedim(1, -1)).movedim(-1, 1)

    def pack(self) -> None:
        """Folds the norm into weights and a bias; called once before export."""
        weight = self.convolution.weight * self.norm.scale[:, None, None, None]
        self.register_buffer("packed_weight", weight.detach(), persistent=False)
        self.register_buffer("packed_bias", self.norm.shift.detach(), persistent=False)
