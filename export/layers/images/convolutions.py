"""The small convolutional network in front of a caption decoder: pixels → features of a grid.

Where papers take VGG or Inception, trained on ImageNet, this stack is small enough for an example.
All captioners over such a network share it, so their scores compare how words read a picture.

Legend: B images, N grid cells, D width of a cell's features.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.layers.images.vision import PixelNorm, check_recipe
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError


@dataclass(frozen=True)
class Convolutions:
    """Sizes of the stack."""

    image: tuple[int, int]
    """Height and width."""
    channels: tuple[int, ...]
    """Of each convolution; the last is D."""
    strides: tuple[int, ...]

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


def read_convolutions(reader: ConfigReader) -> Convolutions:
    """Their fields of `config.json`.

    Raises:
        CheckpointError: a field is missing or does not fit.
    """
    channels, strides = reader.sizes("channels"), reader.sizes("strides")
    if not channels or len(channels) != len(strides):
        raise CheckpointError("config.json: channels and strides need one number a convolution")
    return Convolutions(reader.pair("image_size", 224), channels, strides)


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


class ConvolutionalEncoder(nn.Module):
    """The stack, and the recipe's normalisation in front of it."""

    def __init__(self, sizes: Convolutions) -> None:
        super().__init__()
        self.sizes = sizes
        self.pixel_norm: nn.Module = nn.Identity()
        layers = zip((3, *sizes.channels), sizes.channels, sizes.strides, strict=False)
        self.convolutions = nn.Sequential(*(Convolution(*layer) for layer in layers))

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: the recipe gives another size.
        """
        check_recipe(image, self.sizes.image)
        self.pixel_norm = PixelNorm(image)

    def features(self, pixels: Tensor) -> Tensor:
        """What each cell shows, without where it lies.

        (B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, N, D), row by row.
        """
        return self.convolutions(self.pixel_norm(pixels)).flatten(2).transpose(1, 2)
