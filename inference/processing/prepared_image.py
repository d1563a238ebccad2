"""Image files as what a model takes of them: one array, or the tiles of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, floor, inf, sqrt
from typing import NamedTuple

import numpy as np
from PIL import Image

from inference.bundle.inputs import (
    AspectTiles,
    CanvasTiles,
    EdgeRange,
    ImageSpec,
    PanAndScan,
    PixelRange,
    Resolutions,
    Tiling,
)
from inference.errors import UnsupportedImage
from inference.processing.flattened_patches import with_header
from inference.processing.image import (
    PILLOW_MAX_PIXELS,
    ImageLimits,
    Pixels,
    decode_image,
    prepare_image,
    resized,
)
from inference.processing.regions import read_regions

MOST_PIXELS_A_SIDE = 4096
"""Of an image in tiles, whatever its recipe says, as in `transformers`."""
MOST_ASPECT = 200
"""Of an image that keeps its size: the longer side over the shorter one, as in `transformers`."""
Grid = tuple[int, int]
"""Rows and columns of tiles."""
UNDIVIDED: Grid = (0, 0)
"""Of an image that is not divided."""


class ImageLayout(NamedTuple):
    """What decides how a text holds an image.

    Attributes:
        size: (height, width) of the pixels, or of each tile's.
        grid: Of the tiles.
    """

    size: tuple[int, int]
    grid: Grid = UNDIVIDED

    @classmethod
    def smallest(cls, spec: ImageSpec) -> ImageLayout:
        """That of a recipe whose images are all alike, else of a small one."""
        return cls(spec.shape[:2])


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image at a model's size.

    Attributes:
        pixels: (height, width, 3); (tiles, height, width, 3) where tiles are images of their own.
        size: (width, height) of the image itself, upright.
        grid: Of the tiles; the whole image is beside them.
        undivided: Makes the pixels of it as one of several, where those are others.
        quarters: Parts of it that are read before it, each at its own size.
    """

    pixels: Pixels
    size: tuple[int, int]
    grid: Grid = UNDIVIDED
    undivided: Callable[[], Pixels] | None = None
    quarters: tuple[Pixels, ...] = ()

    @property
    def layout(self) -> ImageLayout:
        """How a text holds it."""
        height, width, _ = self.images[-1].shape
        return ImageLayout((height, width), self.grid)

    @property
    def images(self) -> Sequence[Pixels]:
        """(height, width, 3) each: the images that a model reads of it."""
        return [*self.quarters, *(self.pixels if self.pixels.ndim == 4 else self.pixels[None])]


def read_image(
    data: bytes, limits: ImageLimits, spec: ImageSpec, header: str | None = None
) -> PreparedImage:
    """An image file, or a file of its regions, as the array that a model takes.

    Args:
        header: Drawn above the image.

    Raises:
        ServingError: see `decode_image`, `with_header`, `prepare_image` and `read_regions`.
    """
    if spec.regions is not None:
        found = read_regions(data, spec.regions)
        return PreparedImage(found, (1, len(found)))
    image = decode_image(data, limits)
    if spec.pixels is not None:
        size = size_within(image.size, spec.pixels)
        return PreparedImage(np.asarray(resized(image, size, spec.resample), np.uint8), image.size)
    if spec.bounds is not None:
        return fit_bounds(image, spec, spec.bounds)
    if spec.edges is not None:
        size = size_by_edges(image.size, spec.edges, spec.multiple)
        return PreparedImage(np.asarray(resized(image, size, spec.resample), np.uint8), image.size)
    if header is not None:
        image = with_header(image, header)
    if spec.tiles is None:
        return PreparedImage(prepare_image(image, spec), image.size)
    if isinstance(spec.tiles, Resolutions):
        canvas = fit_resolution(image, spec, spec.tiles)
        undivided = partial(fit_square, image, spec) if spec.tiles.background else None
        return PreparedImage(canvas, image.size, undivided=undivided)
    if isinstance(spec.tiles, CanvasTiles):
        return PreparedImage(fit_tiles(image, spec, spec.tiles), image.size)
    if isinstance(spec.tiles, PanAndScan):
        pixels, grid = pan_and_scan(image, spec, spec.tiles)
    elif isinstance(spec.tiles, AspectTiles):
        pixels, grid = divide_by_aspect(image, spec, spec.tiles)
    else:
        pixels, grid = divide_image(image, spec, spec.tiles)
    return PreparedImage(pixels, image.size, grid)


def seen_together(images: Sequence[PreparedImage]) -> list[PreparedImage]:
    """The images of one prompt: a model may divide an image only where it is alone.

    Raises:
        UnsupportedImage: see `fit_square`.
    """
    if len(images) == 1:
        return list(images)
    return [
        each if each.undivided is None else replace(each, pixels=each.undivided())
        for each in images
    ]


def size_within(size: tuple[int, int], pixels: PixelRange) -> tuple[int, int]:
    """(height, width) that an image of (width, height) is resized to, as `Qwen2VLImageProcessor`.

    Raises:
        UnsupportedImage: too extreme an aspect ratio.
    """
    (width, height), multiple = size, pixels.multiple
    if max(size) > MOST_ASPECT * min(size):
        raise _too_narrow(size)
    sides = round(height / multiple), round(width / multiple)
    count = sides[0] * sides[1] * multiple**2
    if count > pixels.most:
        scale = sqrt(height * width / pixels.most)
        sides = max(1, floor(height / scale / multiple)), max(1, floor(width / scale / multiple))
    elif count < pixels.least:
        scale = sqrt(pixels.least / (height * width))
        sides = ceil(height * scale / multiple), ceil(width * scale / multiple)
    return sides[0] * multiple, sides[1] * multiple


def fit_bounds(image: Image.Image, spec: ImageSpec, bounds: EdgeRange) -> PreparedImage:
    """An RGB image, perhaps behind its quarters, as `Idefics2ImageProcessor`.

    Raises:
        UnsupportedImage: a quarter without pixels.
    """
    (width, height), parts = image.size, [image]
    if bounds.is_divided:
        if min(image.size) < 2:
            raise _too_narrow(image.size)
        spans = [(0, height // 2), (height // 2, height)], [(0, width // 2), (width // 2, width)]
        parts = [
            image.crop((left, top, right, bottom))
            for (top, bottom), (left, right) in product(*spans)
        ] + parts
    *quarters, whole = (
        np.asarray(resized(part, size_in_bounds(part.size, bounds), spec.resample), np.uint8)
        for part in parts
    )
    grid = (2, 2) if quarters else UNDIVIDED
    return PreparedImage(whole, image.size, grid, quarters=tuple(quarters))


def size_in_bounds(size: tuple[int, int], bounds: EdgeRange) -> tuple[int, int]:
    """(height, width) that an image of (width, height) is resized to, as Idefics2's processor."""
    width, height = size
    ratio, most = width / height, bounds.most
    if width >= height and width > most:
        height, width = int(most / ratio), most
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return max(height, bounds.least), max(width, bounds.least)


def size_by_edges(
    size: tuple[int, int], edges: tuple[int, int], multiple: int | None = None
) -> tuple[int, int]:
    """(height, width) that an image of (width, height) is resized to, as `DetrImageProcessor`.

    Args:
        edges: What the shorter edge becomes, and the most that the longer one may become.
        multiple: Of sides that are rounded down to it, as `ViltImageProcessor`.
    """
    shorter, longer = min(size), max(size)
    if multiple is not None:
        scale = edges[0] / shorter
        width, height = (edges[0] if side == shorter else scale * side for side in size)
        if max(width, height) > edges[1]:
            scale = edges[1] / max(width, height)
            width, height = scale * width, scale * height
        return int(height + 0.5) // multiple * multiple, int(width + 0.5) // multiple * multiple
    exact: float = edges[0]
    if longer / shorter * edges[0] > edges[1]:
        exact = edges[1] * shorter / longer
    edge = round(exact)
    if edge == shorter:
        return size[1], size[0]
    other = int(exact * longer / shorter)
    return (other, edge) if size[0] < size[1] else (edge, other)


def _too_narrow(size: tuple[int, int]) -> UnsupportedImage:
    sides = f"{size[0]}x{size[1]}"
    return UnsupportedImage(f"{sides} has too extreme an aspect ratio for this model: crop it")


def divide_image(image: Image.Image, spec: ImageSpec, tiles: Tiling) -> tuple[Pixels, Grid]:
    """(tiles, height, width, 3) of an RGB image, and their rows and columns.

    As `Idefics3ImageProcessor`, whose steps each resize what the one before has left.
    """
    image = resized(image, _to_longest_edge(image.size, tiles.longest_edge), spec.resample)
    height, width = spec.size
    if not tiles.is_divided:
        return np.asarray(resized(image, spec.size, spec.resample), np.uint8)[None], UNDIVIDED
    image = resized(image, _to_multiples(image.size, spec.size), spec.resample)
    rows, columns = image.height // height, image.width // width
    if (rows, columns) == (1, 1):
        return np.asarray(image, np.uint8)[None], UNDIVIDED
    return _tiles(image, resized(image, spec.size, spec.resample), (rows, columns))


def _tiles(image: Image.Image, whole: Image.Image, grid: Grid) -> tuple[Pixels, Grid]:
    """(tiles, height, width, 3) of an image and of the whole at the size of one; and the grid."""
    (rows, columns), shape = grid, (whole.height, whole.width, 3)
    parts = np.asarray(image, np.uint8).reshape(rows, shape[0], columns, shape[1], 3)
    each = parts.swapaxes(1, 2).reshape(-1, *shape)
    return np.concatenate([each, np.asarray(whole, np.uint8)[None]]), grid


def divide_by_aspect(
    image: Image.Image, spec: ImageSpec, tiles: AspectTiles
) -> tuple[Pixels, Grid]:
    """(tiles, height, width, 3) of an RGB image, and their rows and columns.

    As `GotOcr2ImageProcessor` does it with `crop_to_patches`.
    """
    rows, columns = _closest_grid(image.size, spec.size, tiles)
    (height, width), whole = spec.size, resized(image, spec.size, spec.resample)
    if (rows, columns) == (1, 1):
        return np.asarray(whole, np.uint8)[None], UNDIVIDED
    size = rows * height, columns * width
    return _tiles(resized(image, size, spec.resample), whole, (rows, columns))


def _closest_grid(size: tuple[int, int], tile: tuple[int, int], tiles: AspectTiles) -> Grid:
    """The grid of the aspect ratio that is closest to that of an image of (width, height).

    Of several, the last whose tiles have less than twice the image's pixels.
    """
    (width, height), sides = size, range(1, tiles.most + 1)
    grids = [(rows, columns) for columns in sides for rows in sides]
    best, nearest = (1, 1), inf
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        count, distance = rows * columns, abs(width / height - columns / rows)
        is_small = 0.5 * tile[0] * tile[1] * count < width * height
        is_better = distance < nearest or (distance == nearest and is_small)
        if tiles.least <= count <= tiles.most and is_better:
            best, nearest = (rows, columns), distance
    return best


def pan_and_scan(image: Image.Image, spec: ImageSpec, scan: PanAndScan) -> tuple[Pixels, Grid]:
    """(1 + parts, height, width, 3) of an RGB image, and how many parts there are.

    As `Gemma3ImageProcessor` does it with `do_pan_and_scan`.
    """
    count = _parts(image.size, scan)
    (width, height), boxes = image.size, [(0, 0, *image.size)]
    if width >= height:
        step = ceil(width / max(count, 1))
        boxes += [(n * step, 0, min((n + 1) * step, width), height) for n in range(count)]
    else:
        step = ceil(height / max(count, 1))
        boxes += [(0, n * step, width, min((n + 1) * step, height)) for n in range(count)]
    read = [resized(image.crop(box), spec.size, spec.resample) for box in boxes]
    grid = (1, count) if count else UNDIVIDED
    return np.stack([np.asarray(each, np.uint8) for each in read]), grid


def _parts(size: tuple[int, int], scan: PanAndScan) -> int:
    """Parts of an image of that size; 0 where it is not divided."""
    longer, shorter = max(size), min(size)
    if longer / shorter < scan.min_ratio:
        return 0
    count = min(longer // scan.min_crop, floor(longer / shorter + 0.5))
    count = min(scan.max_crops, max(2, count))
    return count if min(ceil(longer / count), shorter) >= scan.min_crop else 0


def fit_resolution(image: Image.Image, spec: ImageSpec, tiles: Resolutions) -> Pixels:
    """The canvas of an RGB image (`TileGrid`), as `LlavaNextImageProcessor` divides it.

    Raises:
        UnsupportedImage: too extreme an aspect ratio.
    """
    (edge, _), side = spec.size, tiles.side
    height, width = _best_resolution(image.size, tiles.sizes)
    scale_width, scale_height = width / image.width, height / image.height
    if scale_width < scale_height:
        inside = min(ceil(image.height * scale_width), height), width
    else:
        inside = height, min(ceil(image.width * scale_height), width)
    top, left = _left_out(image.size, height // edge * side, width // edge * side)
    canvas = np.zeros((edge + height + top, width + left, 3), np.uint8)
    canvas[:edge, :edge] = np.asarray(resized(image, spec.size, spec.resample), np.uint8)
    first, start = edge + (height - inside[0]) // 2, (width - inside[1]) // 2
    pixels = np.asarray(resized(image, inside, spec.resample), np.uint8)
    canvas[first : first + inside[0], start : start + inside[1]] = pixels
    return canvas


def fit_square(image: Image.Image, spec: ImageSpec) -> Pixels:
    """One tile of an RGB image in a square, as `LlavaOnevisionImageProcessor` makes it.

    Raises:
        UnsupportedImage: too extreme an aspect ratio.
    """
    assert isinstance(spec.tiles, Resolutions)
    edge = max(image.size)
    if edge**2 > PILLOW_MAX_PIXELS:
        raise _too_narrow(image.size)
    square = Image.new("RGB", (edge, edge), spec.tiles.background)
    square.paste(image, ((edge - image.width) // 2, (edge - image.height) // 2))
    return np.asarray(resized(square, spec.size, spec.resample), np.uint8)


def fit_tiles(image: Image.Image, spec: ImageSpec, tiles: CanvasTiles) -> Pixels:
    """The canvas of an RGB image (`TileCanvas`), as `MllamaImageProcessor` makes it."""
    (width, height), (edge, _) = image.size, spec.size
    scales = {grid: min(grid[0] * edge / height, grid[1] * edge / width) for grid in tiles.grids}
    best = min((each for each in scales.values() if each >= 1), default=max(scales.values()))
    fitting = (grid for grid, scale in scales.items() if scale == best)
    rows, columns = min(fitting, key=lambda grid: grid[0] * grid[1])
    canvas = np.zeros((rows * edge, columns * edge, 3), np.uint8)
    high, wide = (
        min(max(side, edge), most)
        for side, most in zip((height, width), canvas.shape[:2], strict=True)
    )
    if wide / width < high / height:
        high = min(floor(height * (wide / width)) or 1, high)
    else:
        wide = min(floor(width * (high / height)) or 1, wide)
    canvas[:high, :wide] = np.asarray(resized(image, (high, wide), spec.resample), np.uint8)
    return canvas


def _best_resolution(size: tuple[int, int], sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(height, width) that keeps most pixels of an image of (width, height), then the smallest.

    Raises:
        UnsupportedImage: none keeps any.
    """
    width, height = size

    def keep(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        return pixels, pixels - resolution[0] * resolution[1]

    best = max(sizes, key=keep)
    if not keep(best)[0]:
        raise _too_narrow(size)
    return best


def _left_out(size: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of vectors on either side that see padding of an image (width, height)."""
    width, height = size
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2


def _to_longest_edge(size: tuple[int, int], edge: int) -> tuple[int, int]:
    """(height, width) of an image of (width, height) whose longer edge is resized.

    The shorter edge becomes even, unless the longer one is bounded by `MOST_PIXELS_A_SIDE`.
    """
    width, height = size
    is_wide = width >= height
    ratio = width / height
    shorter = int(edge / ratio) if is_wide else int(edge * ratio)
    height, width = (shorter + shorter % 2, edge) if is_wide else (edge, shorter + shorter % 2)
    height, width = max(height, 1), max(width, 1)
    ratio, most = width / height, MOST_PIXELS_A_SIDE
    if width >= height and width > most:
        height, width = int(most / ratio), most
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return max(height, 1), max(width, 1)


def _to_multiples(size: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image of (width, height) that whole tiles cover, nothing cut off.

    Args:
        tile: (height, width); both are equal.
    """
    (width, height), edge = size, tile[0]
    ratio = width / height
    if width >= height:
        width = -(-width // edge) * edge
        return -(-int(width / ratio) // edge) * edge, width
    height = -(-height // edge) * edge
    return height, -(-int(height * ratio) // edge) * edge
