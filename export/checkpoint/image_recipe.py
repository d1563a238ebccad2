"""A checkpoint's image recipe as an `ImageSpec`.

It is `image_processor` of `processor_config.json`, else `preprocessor_config.json`, which older
versions of `transformers` wrote, or `preprocess_cfg` of `open_clip_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.checkpoint.checkpoint import OPEN_CLIP_CONFIG, Checkpoint
from export.checkpoint.image_processors import (
    BICUBIC,
    BILINEAR,
    OPENAI,
    PROCESSORS,
    Channels,
    Edges,
    Processor,
)
from export.checkpoint.tile_recipe import (
    FILE,
    longest_edge,
    read_canvases,
    read_edges,
    read_pan_and_scan,
    read_patches,
    read_pixel_range,
    read_tiling,
)
from export.config.config_reader import ConfigReader
from inference.bundle.inputs import ImageSpec, PanAndScan, Resolutions, Tiling
from inference.errors import CheckpointError

COMBINED_FILE = "processor_config.json"  # newer checkpoints: tokenizer and images together


def image_spec(checkpoint: Checkpoint) -> ImageSpec:
    """The preparation of this checkpoint's images.

    Raises:
        CheckpointError: no recipe, or one that cannot be followed exactly.
    """
    if checkpoint.is_open_clip:
        return _open_clip_spec(checkpoint)
    values = _values(checkpoint)
    if _name(values).startswith("Pix2StructImageProcessor"):
        return read_patches(values)
    processor = _processor(values)
    for name, supported in processor.steps:
        if values.get(name, supported) is not supported:
            given = str(values[name]).lower()
            raise CheckpointError(f"{FILE}: {name} = {given} is not supported")
    pixels = None
    if processor.pixels is not None:
        pixels = read_pixel_range(values, processor.pixels, checkpoint.config)
        edge = 2 * pixels.multiple
        values = {**values, "size": {"height": edge, "width": edge}}
    edges = None
    if processor.edges is not None:
        edges = read_edges(values, processor.edges)
        small = min(edges[0], int(str(processor.size)))
        values = {**values, "size": {"height": small, "width": small}}
    resize, size = _size(values, processor)
    has_crop = values.get("do_center_crop", processor.crop is not None)
    if processor.resolutions:  # a tile is resized and cropped to its own size
        has_crop = False
    if resize == "shortest_edge" and not has_crop:
        raise CheckpointError(f"{FILE}: resizing one edge needs do_center_crop")
    if resize in ("fit", "padded") and has_crop:
        raise CheckpointError(f"{FILE}: do_center_crop = true is not supported")
    mean, std = processor.statistics
    normalises = values.get("do_normalize", True)
    crop = _pair(values.get("crop_size", processor.crop), "crop_size") if has_crop else None
    centre = None
    if crop is not None and processor.crops_first:
        centre = size[0] / crop[0], size[1] / crop[1]
        crop = None
    return ImageSpec(
        resize=resize,
        size=size,
        is_turned=resize == "fit" and bool(values.get("do_align_long_axis", False)),
        centre=centre,
        crop=crop,
        resample=_resample(values, processor),
        mean=_channels(values, "image_mean", mean) if normalises else (0.0, 0.0, 0.0),
        std=_channels(values, "image_std", std) if normalises else (1.0, 1.0, 1.0),
        rescale=values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0,
        tiles=_tiles(values, processor, size[0], checkpoint.config),
        pixels=pixels,
        edges=edges,
    )


def _values(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields of the image processor that are not null.

    Raises:
        CheckpointError: no file has them.
    """
    combined = ConfigReader(checkpoint.json(COMBINED_FILE), COMBINED_FILE)
    has_section = "image_processor" in combined.given
    reader = combined.section("image_processor") if has_section else None
    found = checkpoint.json(FILE) if reader is None else reader.values
    given = {name: value for name, value in found.items() if value is not None}
    if not given:
        raise CheckpointError(f"{checkpoint.folder} has no {FILE}")
    return given


def _open_clip_spec(checkpoint: Checkpoint) -> ImageSpec:
    """open_clip's transformation of images for inference.

    Raises:
        CheckpointError: a way of resizing that serving does not have.
    """
    reader = ConfigReader(checkpoint.config, OPEN_CLIP_CONFIG)
    size = reader.section("model_cfg").section("vision_cfg").pair("image_size", 224)
    recipe = ConfigReader(
        checkpoint.config.get("preprocess_cfg") or {}, f"{OPEN_CLIP_CONFIG}, preprocess_cfg"
    )
    recipe.refuse_unless(mode="RGB")
    filters = {"bicubic": BICUBIC, "bilinear": BILINEAR, "random": BICUBIC}  # random: in training
    resample = filters.get(recipe.text("interpolation", "bicubic"))
    mode = recipe.text("resize_mode", "shortest")
    if resample is None or mode not in ("shortest", "squash"):
        raise CheckpointError(
            f"{recipe.place}: resize_mode must be shortest or squash, interpolation bicubic, "
            f"bilinear or random, not {mode!r} and {recipe.values.get('interpolation')!r}"
        )
    if mode == "shortest" and size[0] != size[1]:
        raise CheckpointError(f"{recipe.place}: resize_mode = shortest needs a square image_size")
    return ImageSpec(
        resize="exact" if mode == "squash" else "shortest_edge",
        size=size,
        crop=None if mode == "squash" else size,
        crop_start="nearest_even",
        resample=resample,
        mean=_channels(recipe.values, "mean", OPENAI[0]),
        std=_channels(recipe.values, "std", OPENAI[1]),
        rescale=1 / 255,
    )


def _processor(values: Mapping[str, Any]) -> Processor:
    name = _name(values)
    for kind, processor in PROCESSORS.items():
        if name.startswith((f"{kind}ImageProcessor", f"{kind}FeatureExtractor")):
            return processor
    raise CheckpointError(f"{FILE}: {name or 'an unnamed processor'} is not supported")


def _name(values: Mapping[str, Any]) -> str:
    return str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")


def _size(values: Mapping[str, Any], processor: Processor) -> tuple[Edges, tuple[int, int]]:
    if processor.longest_edge is not None:
        given = values.get("max_image_size", {"longest_edge": processor.size})
        return "exact", _pair(longest_edge(given, "max_image_size"), "max_image_size")
    size = values.get("size", processor.size)
    if processor.resolutions:
        return "exact", _tile(values, size, processor)
    if processor.size_name is not None and values.get(processor.size_name) is not None:
        size = values[processor.size_name]
    if isinstance(size, int) and processor.resize == "shortest_edge":
        size = {"shortest_edge": size}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        edge = int(processor.enlargement * size["shortest_edge"])
        return "shortest_edge", (edge, edge)
    if processor.resize == "fit":
        if isinstance(size, list) and len(size) == 2:  # older files: width and height
            size = {"height": size[1], "width": size[0]}
        return "fit", _pair(size, "size")
    return "padded" if processor.resize == "padded" else "exact", _pair(size, "size")


def _tile(values: Mapping[str, Any], size: object, processor: Processor) -> tuple[int, int]:
    """The size of a tile, a square, which is that of its crop too.

    Raises:
        CheckpointError: it is not.
    """
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        size = size["shortest_edge"]
    tile = _pair(size, "size")
    crop = _pair(values.get("crop_size", processor.size), "crop_size")
    if tile[0] != tile[1] or tile != crop:
        raise CheckpointError(f"{FILE}: size = {tile} and crop_size = {crop} are not one square's")
    return tile


def _tiles(
    values: Mapping[str, Any], processor: Processor, side: int, config: Mapping[str, Any]
) -> Tiling | PanAndScan | Resolutions | None:
    """How images are divided into tiles of that side; None for a processor that does not."""
    if processor.resolutions:
        return read_canvases(values, processor.resolutions, side, config)
    if processor.longest_edge is not None:
        return read_tiling(values, processor.longest_edge, side)
    return read_pan_and_scan(values) if processor.scans else None


def _resample(values: Mapping[str, Any], processor: Processor) -> int:
    number = values.get("resample")
    number = processor.resample if number is None else number
    if isinstance(number, bool) or number not in range(6):
        raise CheckpointError(f"{FILE}: resample must be a filter of Pillow, 0 to 5, not {number}")
    return int(number)


def _pair(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple):
        return value
    if isinstance(value, Mapping) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    raise CheckpointError(f"{FILE}: {name} = {value!r} is not supported")


def _channels(values: Mapping[str, Any], name: str, default: Channels) -> Channels:
    given = values.get(name, default)
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise CheckpointError(f"{FILE}: {name} must hold three numbers, not {given!r}")
    return given[0], given[1], given[2]
