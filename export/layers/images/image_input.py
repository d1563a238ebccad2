"""Images as inputs of graphs: the port, the tower's preparation, sizes to trace and check with."""

from __future__ import annotations

from typing import Any

from export.layers.images.vision import check_recipe
from inference.bundle.inputs import ImageSpec, PatchGrid, PromptImages, TileGrid
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port


def pixels_port(image: ImageSpec, *, has_many: bool = False, has_sizes: bool = False) -> Port:
    """Pixels (B, height, width, 3), as the recipe prepares them.

    Args:
        has_many: (B, I, height, width, 3): each row has several images.
        has_sizes: Height and width are dynamic.
    """
    size = ("height", "width", 3) if has_sizes else image.shape
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


def traced_sizes(grid: TileGrid | PatchGrid | None) -> dict[str, int]:
    """Height and width of images of any size, while a graph is traced."""
    if grid is None:
        return {}
    if isinstance(grid, PatchGrid):
        return {"height": 4 * grid.edge, "width": 6 * grid.edge}
    # Two by three tiles, some of whose vectors are left out.
    return {"height": 3 * grid.edge + 1, "width": 3 * grid.edge + 1}


def checked_shape(image: ImageSpec, images: PromptImages, number: int) -> tuple[int, int, int]:
    """(height, width, 3) of an image that a model reads; others for other numbers, if it does."""
    if images.grid is None:
        return image.shape
    grid, more = images.grid, number % 2
    if isinstance(grid, PatchGrid):
        return grid.edge * (4 - 3 * more), grid.edge * (2 + more), 3
    left_out = int(grid.side > 2) * (number // 2 % 2)
    return grid.edge * (3 - more) + left_out, grid.edge * (1 + more), 3
