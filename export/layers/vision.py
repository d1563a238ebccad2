"""What image towers share: pixels to patches, and the recipe's normalisation inside the graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving.bundle import ImageSpec
from serving.errors import CheckpointError


class PixelNorm(nn.Module):
    """Prepared pixels (B, height, width, 3) uint8 → (B, 3, height, width) as the tower's input.

    In the order of `transformers`' image processors: rescale, subtract the mean, divide.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, image: ImageSpec) -> None:
        super().__init__()
        self.rescale = image.rescale
        self.register_buffer("mean", torch.tensor(image.mean), persistent=False)
        self.register_buffer("std", torch.tensor(image.std), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Channels first, floating point."""
        x = (pixels.float() * self.rescale - self.mean) / self.std
        return x.permute(0, 3, 1, 2)


class PatchEmbedding(nn.Module):
    """An image as a row of patch vectors (Dosovitskiy 2020 §3.1, arXiv 2010.11929)."""

    def __init__(self, width: int, patch: tuple[int, int], *, bias: bool) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, N, D), row by row."""
        return self.projection(image).flatten(2).transpose(1, 2)


def patch_count(image: tuple[int, int], patch: tuple[int, int]) -> int:
    """N: whole patches; what is left over at the edges is not seen."""
    return (image[0] // patch[0]) * (image[1] // patch[1])


def check_recipe(image: ImageSpec, size: tuple[int, int]) -> None:
    """Refuses a recipe that does not give the size that the tower was built for.

    Raises:
        CheckpointError: names both sizes.
    """
    if image.shape[:2] != size:
        raise CheckpointError(
            f"the image recipe gives {image.shape[:2]}, but config.json's image_size is {size}"
        )
