"""How an image recipe divides images into tiles, or keeps their size or aspect ratio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.config.config_reader import ConfigReader
from inference.bundle.inputs import ImageSpec, PanAndScan, Patches, PixelRange, Resolutions, Tiling
from inference.errors import CheckpointError

FILE = "preprocessor_config.json"
MOST_PATCHES = 8192
"""Of an image; published files have up to 4096."""
MOST_TILES = 16
"""In a row or column, which bounds the text that stands for an image."""
MOST_PIXELS = 1280 * 28 * 28
"""Of pictures that keep their size, unless the export says otherwise: a tower's time grows with the
square of their pixels, and published folders allow twelve times as many."""
MOST_EDGE = 4096
"""Of pictures that keep their aspect ratio."""
Sizes = tuple[tuple[int, int], ...]


def longest_edge(size: object, name: str) -> int:
    """The number of `{"longest_edge": …}`.

    Raises:
        CheckpointError: it is something else.
    """
    edge = size.get("longest_edge") if isinstance(size, Mapping) and len(size) == 1 else None
    if not isinstance(edge, int) or isinstance(edge, bool):
        raise CheckpointError(f"{FILE}: {name} = {size!r} is not supported, only a longest edge is")
    return edge


def read_tiling(values: Mapping[str, Any], default: int, side: int) -> Tiling:
    """How images are divided into squares of that side, as of Idefics3's processor.

    Args:
        default: Of the longest edge.

    Raises:
        CheckpointError: `size` is no longest edge, or one of too many tiles.
    """
    edge = longest_edge(values.get("size", {"longest_edge": default}), "size")
    if not 0 < edge <= MOST_TILES * side:
        raise CheckpointError(
            f"{FILE}: a longest edge of {edge} is not supported, only 1 to {MOST_TILES} times the "
            f"{side} of max_image_size"
        )
    return Tiling(longest_edge=edge, is_divided=bool(values.get("do_image_splitting", True)))


def read_edges(values: Mapping[str, Any], default: tuple[int, int]) -> tuple[int, int]:
    """The shorter edge of images that keep their aspect ratio, and the most of the longer one.

    Raises:
        CheckpointError: images have one size, or are padded to one.
    """
    size = values.get("size", {"shortest_edge": default[0], "longest_edge": default[1]})
    if values.get("pad_size") is not None:
        raise CheckpointError(f"{FILE}: pad_size = {values['pad_size']!r} is not supported")
    names = {"shortest_edge", "longest_edge"}
    if (
        not isinstance(size, Mapping)
        or {n for n, edge in size.items() if edge is not None} != names
    ):
        raise CheckpointError(
            f"{FILE}: size = {size!r} is not supported, only a shortest_edge and a longest_edge are"
        )
    reader = ConfigReader(size, f"{FILE}, size")
    edges = reader.integer("shortest_edge"), reader.integer("longest_edge")
    if not edges[0] <= edges[1] <= MOST_EDGE:
        raise CheckpointError(
            f"{FILE}: size = {size!r} is not supported: a longest edge is at least the shortest "
            f"one and at most {MOST_EDGE}"
        )
    return edges


def read_pan_and_scan(values: Mapping[str, Any]) -> PanAndScan | None:
    """How long images are divided, as of Gemma 3's processor; None where they are not.

    Raises:
        CheckpointError: too many parts, or parts that may be empty.
    """
    if not values.get("do_pan_and_scan"):
        return None
    given = {name: value for name, value in values.items() if value is not None}
    reader = ConfigReader(given, FILE)
    most = reader.integer("pan_and_scan_max_num_crops", 4)
    if not 0 < most <= MOST_TILES:
        raise CheckpointError(
            f"{FILE}: pan_and_scan_max_num_crops = {most} is not supported, only 1 to {MOST_TILES}"
        )
    least = reader.integer("pan_and_scan_min_crop_size", 256)
    if least < max(2, most):
        raise CheckpointError(
            f"{FILE}: pan_and_scan_min_crop_size = {least} is not supported, only "
            f"{max(2, most)} and more"
        )
    return PanAndScan(
        min_crop=least,
        max_crops=most,
        min_ratio=reader.number("pan_and_scan_min_ratio_to_activate", 1.2),
    )


def read_patches(values: Mapping[str, Any]) -> ImageSpec:
    """The recipe of Pix2Struct's processor.

    Raises:
        CheckpointError: patches of no size, or more of them than are read.
    """
    reader = ConfigReader(values, FILE)
    patch = values.get("patch_size") or {"height": 16, "width": 16}
    if not isinstance(patch, Mapping):
        raise CheckpointError(f"{FILE}: patch_size = {patch!r} is not supported")
    sides = ConfigReader(patch, f"{FILE}, patch_size")
    height, width = sides.integer("height"), sides.integer("width")
    most = reader.integer("max_patches", 2048)
    if most > MOST_PATCHES:
        raise CheckpointError(
            f"{FILE}: max_patches = {most} is not supported, only 1 to {MOST_PATCHES}"
        )
    return ImageSpec(
        resize="patches",
        size=(most, height * width + 1),
        resample=2,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        rescale=1.0,
        patches=Patches(
            height=height,
            width=width,
            has_header=reader.flag("is_vqa", False),
            is_normalised=reader.flag("do_normalize", True),
        ),
    )


def read_resolutions(given: object, side: int, place: str) -> Sizes:
    """`image_grid_pinpoints` of a file, (height, width) each.

    Args:
        side: Of a tile.
        place: The file's name, for messages.

    Raises:
        CheckpointError: one is not of whole tiles, or of too many.
    """
    sizes = given if isinstance(given, list | tuple) else ()
    most = range(side, MOST_TILES * side + 1, side)
    if not sizes or not all(
        isinstance(size, list | tuple) and len(size) == 2 and all(edge in most for edge in size)
        for size in sizes
    ):
        raise CheckpointError(
            f"{place}: image_grid_pinpoints = {given!r} is not supported, only heights and widths "
            f"of 1 to {MOST_TILES} times {side}"
        )
    return tuple((height, width) for height, width in sizes)


def read_canvases(
    values: Mapping[str, Any], default: Sizes, side: int, config: Mapping[str, Any]
) -> Resolutions:
    """The resolutions at which images are divided, as of LLaVA-NeXT's processor.

    Args:
        default: Of `image_grid_pinpoints`.
        side: Of a tile.
        config: `config.json`, whose tower has the patches.

    Raises:
        CheckpointError: see `read_resolutions`.
    """
    sizes = read_resolutions(values.get("image_grid_pinpoints", default), side, FILE)
    patch = ConfigReader(config).section("vision_config").integer("patch_size")
    return Resolutions(sizes=sizes, side=side // patch)


def read_pixel_range(
    values: Mapping[str, Any], default: tuple[int, int], config: Mapping[str, Any]
) -> PixelRange:
    """The sizes of images that keep theirs, as of Qwen2-VL's processor.

    Args:
        default: The least and the greatest number of pixels.
        config: `config.json`, whose tower has the frames of an image.

    Raises:
        CheckpointError: bounds that are none, or another number of frames.
    """
    recipe = ConfigReader(values, FILE)
    size = ConfigReader(values.get("size") or {}, f"{FILE}, size")
    frames = ConfigReader(config).section("vision_config").integer("temporal_patch_size", 2)
    if recipe.integer("temporal_patch_size", 2) != frames:
        raise CheckpointError(
            f"{FILE}: temporal_patch_size is not the {frames} of config.json, vision_config"
        )
    least = recipe.integer("min_pixels", size.integer("shortest_edge", default[0]))
    most = recipe.integer("max_pixels", size.integer("longest_edge", default[1]))
    if least > most:
        raise CheckpointError(f"{FILE}: min_pixels = {least} is over max_pixels = {most}")
    multiple = recipe.integer("patch_size", 14) * recipe.integer("merge_size", 2)
    return PixelRange(multiple=multiple, least=least, most=most)


def limit_pixels(image: ImageSpec, most: int | None) -> ImageSpec:
    """The recipe with at most so many pixels, where pictures keep their size.

    Args:
        most: None: `MOST_PIXELS`, or fewer if the checkpoint says so.

    Raises:
        CheckpointError: a number that the recipe excludes.
    """
    sizes = image.pixels
    if sizes is None:
        if most is not None:
            raise CheckpointError("--max-pixels: pictures of this model have a size that is fixed")
        return image
    if most is None:
        most = max(sizes.least, min(sizes.most, MOST_PIXELS))
    if not sizes.least <= most <= sizes.most:
        raise CheckpointError(
            f"--max-pixels {most}: {FILE} allows {sizes.least} to {sizes.most} pixels"
        )
    return image.model_copy(update={"pixels": sizes.model_copy(update={"most": most})})
