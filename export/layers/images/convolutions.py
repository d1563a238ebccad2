"""Convolutions of image towers, and batch normalisation by stored statistics.

Where papers take VGG or Inception, trained on ImageNet, this stack is small enough for an example.
All captioners over such a network share it, so their scores compare how words read a picture.

Legend: B images, N grid cells, D width of a cell's features.

Behind a linear layer or a convolution it is folded into their weights for export: one operator less
on every activation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from export.config.config_reader import key
from export.layers.images.vision import FixedSizeTower
from inference.errors import CheckpointError

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
    """A linear layer, normalised: (…, D) → (…, D')."""

    packed_weight: Tensor
    packed_bias: Tensor

    def __init__(self, width: int, output_width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(width, output_width, bias=bias)
        self.norm = BatchNorm(output_width)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        if is_in_onnx_export():
            return functional.linear(x, self.packed_weight, self.packed_bias)
        return self.norm(self.linear(x))

    def pack(self) -> None:
        """Folds the norm into weights and a bias; called once before export."""
        weight, bias = self.linear.weight * self.norm.scale[:, None], self.norm.shift
        if self.linear.bias is not None:
            bias = bias + self.norm.scale * self.linear.bias
        self.register_buffer("packed_weight", weight.detach(), persistent=False)
        self.register_buffer("packed_bias", bias.detach(), persistent=False)


class NormedConvolution(nn.Module):
    """A convolution without bias, normalised: (B, D, h, w) → (B, D', h', w')."""

    packed_weight: Tensor
    packed_bias: Tensor

    def __init__(
        self, width: int, output_width: int, kernel: int, stride: int, pad: int, groups: int = 1
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            width, output_width, kernel, stride, pad, groups=groups, bias=False
        )
        self.norm = BatchNorm(output_width)

    def forward(self, x: Tensor) -> Tensor:
        """Channels first."""
        if is_in_onnx_export():
            stride, padding = self.convolution.stride, self.convolution.padding
            packed, groups = (self.packed_weight, self.packed_bias), self.convolution.groups
            return functional.conv2d(x, *packed, stride, padding, groups=groups)
        return self.norm(self.convolution(x).movedim(1, -1)).movedim(-1, 1)

    def pack(self) -> None:
        """Folds the norm into weights and a bias; called once before export."""
        weight = self.convolution.weight * self.norm.scale[:, None, None, None]
        self.register_buffer("packed_weight", weight.detach(), persistent=False)
        self.register_buffer("packed_bias", self.norm.shift.detach(), persistent=False)


@dataclass(frozen=True)
class Convolutions:
    """Sizes of the stack."""

    image: tuple[int, int] = key("image_size", 224)
    """Height and width."""
    channels: tuple[int, ...] = key("channels")
    """Of each convolution; the last is D."""
    strides: tuple[int, ...] = key("strides")

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise CheckpointError("config.json: channels and strides need one number a convolution")

    @property
    def width(self) -> int:
        """D."""
        return self.channels[-1]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells: a convolution of stride s leaves ⌈size / s⌉."""
        height, width = self.image
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
        return height, width

    @property
    def cells(self) -> int:
        """N."""
        return self.grid[0] * self.grid[1]


class Convolution(nn.Module):
    """3 x 3 convolution, batch normalisation (Ioffe 2015, arXiv 1502.03167), ReLU."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.norm.register_buffer("num_batches_tracked", None)  # the momentum is constant

    def forward(self, x: Tensor) -> Tensor:
        """(B, inner, h, w) → (B, outer, ⌈h / stride⌉, ⌈w / stride⌉)."""
        return self.norm(self.filter(x)).relu()


class ConvolutionalEncoder(FixedSizeTower):
    """The stack, and the recipe's normalisation in front of it."""

    def __init__(self, sizes: Convolutions) -> None:
        super().__init__(sizes.image)
        self.sizes = sizes
        layers = zip((3, *sizes.channels), sizes.channels, sizes.strides, strict=False)
        self.convolutions = nn.Sequential(*(Convolution(*layer) for layer in layers))

    def features(self, pixels: Tensor) -> Tensor:
        """What each cell shows, without where it lies.

        (B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, N, D), row by row.
        """
        return self.convolutions(self.pixel_norm(pixels)).flatten(2).transpose(1, 2)
