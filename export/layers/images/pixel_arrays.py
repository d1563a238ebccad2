"""An image as the array of inputs of a Perceiver, in the three forms of Jaegle et al. 2021,
"Perceiver IO", §H (arXiv 2107.14795): every pixel with a learned position or with Fourier features,
or a convolution's outputs with Fourier features.

Legend: B batch, S inputs, h and w rows and columns of them, F frequencies.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from export.layers.images.convolutions import NormedConvolution
from export.layers.images.vision import AnySizeTower, FixedSizeTower

FREQUENCIES = 64
FOURIER_WIDTH = 2 + 4 * FREQUENCIES  # the position itself, then sines and cosines of either axis
LEARNED_WIDTH = 256  # of a pixel's channels, and of its position


class FourierPositions(nn.Module):
    """Each place of a grid, and sines and cosines of it (Jaegle et al. 2021, "Perceiver", §D).

    Rows and columns lie in [-1, 1]; the frequencies go from 1 to half of `resolution`. Tables of
    either axis are kept: those of all places together would be larger than most networks.

    Args:
        resolution: Places an axis of the largest image that the frequencies tell apart.
    """

    frequencies: Tensor

    def __init__(self, resolution: int) -> None:
        super().__init__()
        frequencies = torch.linspace(1.0, resolution / 2, FREQUENCIES)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, rows: int, columns: int) -> Tensor:
        """(rows · columns, `FOURIER_WIDTH`)."""
        grid = (rows, columns)
        axes = [torch.linspace(-1.0, 1.0, size) for size in grid]
        angles = [math.pi * (axis[:, None] * self.frequencies) for axis in axes]
        parts = [[axis[:, None] for axis in axes]]
        parts += [[wave(angle) for angle in angles] for wave in (torch.sin, torch.cos)]
        spread = [_expand(table, axis, grid) for pair in parts for axis, table in enumerate(pair)]
        return torch.cat(spread, dim=-1).flatten(0, 1)


def _expand(table: Tensor, axis: int, grid: tuple[int, int]) -> Tensor:
    """(places of an axis, F) → (rows, columns, F)."""
    return table.unsqueeze(1 - axis).expand(*grid, -1)


class PixelArray(AnySizeTower):
    """Base of the three forms: normalised pixels, and positions behind each input's channels."""

    width: ClassVar[int]
    """Of one input."""

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, S, `width`)."""
        x = self.features(self.pixel_norm(pixels))
        positions = self.positions(x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)
        return torch.cat([x, positions.expand(x.shape[0], -1, -1)], dim=-1)

    def features(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, channels, h, w)."""
        raise NotImplementedError

    def positions(self, rows: int, columns: int) -> Tensor:
        """(S, channels)."""
        raise NotImplementedError


class LearnedPixels(FixedSizeTower, PixelArray):
    """Pixels through a 1 × 1 convolution, beside a learned position each.

    Args:
        size: (height, width) of the image; the positions belong to it.
    """

    width = 2 * LEARNED_WIDTH
    packed: Tensor

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__(size)
        self.convolution = nn.Conv2d(3, LEARNED_WIDTH, kernel_size=1)
        self.table = nn.Parameter(torch.zeros(math.prod(size), LEARNED_WIDTH))
        self.projection = nn.Linear(LEARNED_WIDTH, LEARNED_WIDTH)

    def features(self, image: Tensor) -> Tensor:
        """(B, 3, h, w) → (B, `LEARNED_WIDTH`, h, w)."""
        return self.convolution(image)

    def positions(self, rows: int, columns: int) -> Tensor:
        """(S, `LEARNED_WIDTH`), the same for every image."""
        return self.packed if is_in_onnx_export() else self.projection(self.table)

    def pack(self) -> None:
        """Projects the table; called once before export."""
        packed = self.projection(self.table).detach().clone()
        self.register_buffer("packed", packed, persistent=False)


class FourierPixels(PixelArray):
    """Pixels as they are, beside Fourier features of their places."""

    width = 3 + FOURIER_WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.places = FourierPositions(resolution=224)

    def features(self, image: Tensor) -> Tensor:
        """(B, 3, h, w) → (B, 3, h, w)."""
        return image

    def positions(self, rows: int, columns: int) -> Tensor:
        """(S, `FOURIER_WIDTH`)."""
        return self.places(rows, columns)


class ConvolvedPixels(PixelArray):
    """A convolution, its norm and a maximum, each of stride 2, beside Fourier features."""

    channels: ClassVar[int] = 64
    width = channels + FOURIER_WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.convolution = NormedConvolution(3, self.channels, kernel=7, stride=2, pad=3)
        self.places = FourierPositions(resolution=56)

    def features(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, `channels`, h, w), about a quarter of either side."""
        x = functional.relu(self.convolution(image))
        return functional.max_pool2d(x, kernel_size=3, stride=2)

    def positions(self, rows: int, columns: int) -> Tensor:
        """(S, `FOURIER_WIDTH`)."""
        return self.places(rows, columns)
