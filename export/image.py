"""A checkpoint's image recipe: `preprocessor_config.json` as an `ImageSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from export.checkpoint import Checkpoint
from serving.bundle import ImageSpec
from serving.errors import CheckpointError

FILE = "preprocessor_config.json"
COMBINED_FILE = "processor_config.json"  # newer checkpoints: tokenizer and images together
BILINEAR, BICUBIC = 2, 3
RESAMPLING = {"ViT": BILINEAR, "CLIP": BICUBIC, "Blip": BICUBIC, "Siglip": BICUBIC}
"""Kind of processor → its filter where the file names none."""


def image_spec(checkpoint: Checkpoint) -> ImageSpec:
    """The preparation of this checkpoint's images.

    Raises:
        CheckpointError: no recipe, or one that cannot be followed exactly.
    """
    values = checkpoint.json(FILE) or checkpoint.json(COMBINED_FILE).get("image_processor")
    if not values:
        raise CheckpointError(f"{checkpoint.folder} has no {FILE}")
    kind = _kind(values)
    is_clip = kind == "CLIP"
    if values.get("do_resize", True) is not True:
        raise CheckpointError(f"{FILE}: do_resize = false is not supported")
    resize, size = _size(values, is_clip)
    has_crop = values.get("do_center_crop", is_clip)
    if resize == "shortest_edge" and not has_crop:
        raise CheckpointError(f"{FILE}: resizing one edge needs do_center_crop")
    normalises = values.get("do_normalize", True)
    return ImageSpec(
        resize=resize,
        size=size,
        crop=_pair(values.get("crop_size"), "crop_size") if has_crop else None,
        resample=values.get("resample", RESAMPLING[kind]),
        mean=_channels(values, "image_mean") if normalises else (0.0, 0.0, 0.0),
        std=_channels(values, "image_std") if normalises else (1.0, 1.0, 1.0),
        rescale=values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0,
    )


def _kind(values: Mapping[str, Any]) -> str:
    name = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    for kind in RESAMPLING:
        if name.startswith((f"{kind}ImageProcessor", f"{kind}FeatureExtractor")):
            return kind
    raise CheckpointError(f"{FILE}: {name or 'an unnamed processor'} is not supported")


def _size(
    values: Mapping[str, Any], is_clip: bool
) -> tuple[Literal["exact", "shortest_edge"], tuple[int, int]]:
    size = values.get("size")
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return "shortest_edge", (size["shortest_edge"], size["shortest_edge"])
    if isinstance(size, int) and is_clip:
        return "shortest_edge", (size, size)
    return "exact", _pair(size, "size")


def _pair(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, Mapping) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    raise CheckpointError(f"{FILE}: {name} = {value!r} is not supported")


def _channels(values: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    given = values.get(name)
    if not isinstance(given, list) or len(given) != 3:
        raise CheckpointError(f"{FILE}: {name} must hold three numbers, not {given!r}")
    return given[0], given[1], given[2]
