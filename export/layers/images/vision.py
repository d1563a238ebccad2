"""What image towers share: inputs, patches, positions, norms.

Legend: B batch, N patches, F tokens in front of the patches, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from inference.bundle.inputs import ImageSpec, PatchGrid, PromptImages, TileCanvas, TileGrid
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError


def pixels_port(image: ImageSpec, *, has_many: bool = False, has_sizes: bool = False) -> Port:
    """Pixels (B, height, width, 3), as the recipe prepares them.

    Args:
        has_many: (B, I, height, width, 3): each row has several images.
        has_sizes: Height and width are dynamic.
    """
    size: tuple[int | str, ...] = ("height", "width", 3) if has_sizes else image.shape
    if image.regions is not None:
        size = ("height", *image.shape[1:])
    shape = ("B", "I", *size) if has_many else ("B", *size)
    return Port(name="pixels", dtype=image.dtype, shape=shape, role=Role.PIXELS)


def prepare_tower(
    tower: Any, image: ImageSpec | None, size: tuple[int, int] | None = None
) -> ImageSpec:
    """The recipe of a tower that takes its prepared pixels from now on.

    Args:
        size: The (height, width) of config.json, for towers that take others too.

    Raises:
        CheckpointError: the recipe gives another size.
    """
    assert image is not None
    if size is not None:
        check_recipe(image, size)
    tower.prepare(image)
    return image


def traced_sizes(grid: TileGrid | PatchGrid | TileCanvas | None) -> dict[str, int]:
    """Height and width of images of any size, while a graph is traced."""
    if grid is None:
        return {}
    if isinstance(grid, PatchGrid):
        return {"height": 4 * grid.edge, "width": 6 * grid.edge}
    if isinstance(grid, TileCanvas):
        return {"height": 2 * grid.edge, "width": 2 * grid.edge}
    # Two by three tiles, some of whose vectors are left out.
    return {"height": 3 * grid.edge + 1, "width": 3 * grid.edge + 1}


def checked_shape(image: ImageSpec, images: PromptImages, number: int) -> tuple[int, int, int]:
    """(height, width, 3) of an image that a model reads; others for other numbers, if it does."""
    if images.grid is None:
        return image.shape
    grid, more = images.grid, number % 2
    if isinstance(grid, PatchGrid):
        return grid.edge * (4 - 3 * more), grid.edge * (2 + more), 3
    if isinstance(grid, TileCanvas):
        return grid.edge * min(1 + more, grid.most), grid.edge, 3
    left_out = int(grid.side > 2) * (number // 2 % 2)
    return grid.edge * (3 - more) + left_out, grid.edge * (1 + more), 3


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


class AnySizeTower(nn.Module):
    """A network for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.pixel_norm: nn.Module = nn.Identity()

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image."""
        self.pixel_norm = PixelNorm(image)


class FixedSizeTower(AnySizeTower):
    """A network for images of one (height, width)."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: the recipe gives another size.
        """
        check_recipe(image, self.size)
        super().prepare(image)


class PatchEmbedding(nn.Module):
    """An image as a row of patch vectors (Dosovitskiy 2020 §3.1, arXiv 2010.11929)."""

    def __init__(self, width: int, patch: tuple[int, int], *, bias: bool) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, N, D), row by row."""
        return self.projection(image).flatten(2).transpose(1, 2)


class GridPositions(nn.Module):
    """Learned positions of a grid of patches, and of the tokens in front of them.

    For an image of another size than the checkpoint's, the grid is interpolated as in DINO's
    published code (Caron et al. 2021, arXiv 2104.14294) and in `transformers`: bicubic, corners not
    aligned. A graph holds the result: operators of ONNX would round it differently.
    """

    packed: Tensor

    def __init__(self, width: int, grid: tuple[int, int], leading: int) -> None:
        super().__init__()
        self.leading = leading
        self.trained_grid = grid
        self.grid = grid
        self.is_antialiased = False
        self.table = nn.Parameter(torch.zeros(1, leading + grid[0] * grid[1], width))

    def resize(self, grid: tuple[int, int]) -> None:
        """Uses a grid of that many rows and columns from now on.

        Raises:
            CheckpointError: the checkpoint's own grid is not square; interpolation is defined for
                square ones.
        """
        rows, columns = self.trained_grid
        if grid != self.trained_grid and rows != columns:
            raise CheckpointError(
                f"the image recipe gives {grid[0]} x {grid[1]} patches, the checkpoint has "
                f"positions for {rows} x {columns}: only square grids are interpolated"
            )
        self.grid = grid

    def forward(self) -> Tensor:
        """(1, F + N, D)."""
        return self.packed if is_in_onnx_export() else self._interpolate()

    def pack(self) -> None:
        """Stores the positions of the image's grid; called once before export."""
        self.register_buffer("packed", self._interpolate().detach().clone(), persistent=False)

    def _interpolate(self) -> Tensor:
        if self.grid == self.trained_grid:
            return self.table
        return interpolate_grid(
            self.table,
            self.trained_grid,
            self.grid,
            self.leading,
            is_antialiased=self.is_antialiased,
        )


def interpolate_grid(
    table: Tensor,
    trained: tuple[int, int],
    grid: tuple[int, int],
    leading: int,
    *,
    is_antialiased: bool = False,
) -> Tensor:
    """Positions (1, F + N, D) of one grid of patches for another one: bicubic, as in DINO.

    Args:
        trained: Rows and columns of `table`.
        leading: F.
    """
    front, patches = table[:, :leading], table[:, leading:]
    resized = functional.interpolate(
        patches.unflatten(1, trained).permute(0, 3, 1, 2),
        size=grid,
        mode="bicubic",
        align_corners=False,
        antialias=is_antialiased,
    )
    return torch.cat([front, resized.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def patch_grid(image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of whole patches; what is left over at the edges is not read.

    Raises:
        CheckpointError: the image is smaller than one patch.
    """
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    if not rows or not columns:
        raise CheckpointError(
            f"an image of {image[0]} x {image[1]} holds no patch of {patch[0]} x {patch[1]}"
        )
    return rows, columns


def patch_count(image: tuple[int, int], patch: tuple[int, int]) -> int:
    """N: whole patches."""
    rows, columns = patch_grid(image, patch)
    return rows * columns


def check_recipe(image: ImageSpec, size: tuple[int, int]) -> None:
    """Refuses a recipe that does not give the size that the tower was built for.

    Raises:
        CheckpointError: names both sizes.
    """
    if image.shape[:2] != size:
        raise CheckpointError(
            f"the image recipe gives {image.shape[:2]}, but config.json's image_size is {size}"
        )
