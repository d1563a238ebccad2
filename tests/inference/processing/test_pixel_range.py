"""Images that keep their size against the processor of Qwen2-VL, through recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import image_spec
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError, UnsupportedImage
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image
from tests.pictures import encoded, noise

SIZES = [(64, 48), (33, 91), (1, 1), (1, 40), (200, 1), (20, 20), (7, 200), (200, 100), (61, 60)]
SIZES += [(14, 14), (42, 70), (56, 56), (300, 17)]  # halves of squares, whose rounding is to even
RECIPES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "bounds": {"min_pixels": 3000, "max_pixels": 9000},
    "bounds of newer files": {"size": {"shortest_edge": 500, "longest_edge": 4000}},
    "other patches": {"patch_size": 5, "merge_size": 3, "min_pixels": 500, "resample": 2},
    "only small ones": {"min_pixels": 100, "max_pixels": 1000, "patch_size": 7},
}


def _spec(folder: Path, fields: dict[str, Any], frames: int = 2) -> ImageSpec:
    values = {"image_processor_type": "Qwen2VLImageProcessor", **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    config = {"vision_config": {"temporal_patch_size": frames}}
    return image_spec(Checkpoint(folder, "x", config))


@pytest.mark.parametrize("title", RECIPES)
def test_images_are_those_of_the_processor(title: str, tmp_path: Path) -> None:
    fields = RECIPES[title]
    spec = _spec(tmp_path, fields)
    processor = Qwen2VLImageProcessorPil(**fields, do_rescale=False, do_normalize=False)
    patch, merge = fields.get("patch_size", 14), fields.get("merge_size", 2)
    assert spec.size == (2 * patch * merge, 2 * patch * merge)
    for size in SIZES:
        image = noise(*size)
        wanted = processor(image, return_tensors="np")
        _, height, width = wanted["image_grid_thw"][0].tolist()
        frames = wanted["pixel_values"].reshape(
            height // merge, width // merge, merge, merge, 3, 2, patch, patch
        )
        frames = frames.transpose(5, 0, 2, 6, 1, 3, 7, 4).reshape(
            2, height * patch, width * patch, 3
        )
        ours = read_image(encoded(image), ImageLimits(), spec)
        for frame in frames:  # an image is a video that stands still
            np.testing.assert_array_equal(ours.pixels, frame, err_msg=str(size))
        assert ours.size == size


def test_an_aspect_ratio_that_the_processor_refuses_is_refused(tmp_path: Path) -> None:
    spec, image = _spec(tmp_path, {}), noise(201, 1)
    with pytest.raises(ValueError, match="aspect ratio"):
        Qwen2VLImageProcessorPil()(image)
    with pytest.raises(UnsupportedImage, match="201x1 has too extreme an aspect ratio"):
        read_image(encoded(image), ImageLimits(), spec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_pixels": 99, "max_pixels": 98}, "min_pixels = 99 is over max_pixels = 98"),
        ({"max_pixels": 0}, "max_pixels must be a whole number"),
        ({"temporal_patch_size": 1}, "temporal_patch_size is not the 2 of config.json"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(tmp_path, fields)
