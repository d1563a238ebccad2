"""Rows of patches and texts above images against Pix2Struct's processor, through recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.pix2struct.image_processing_pil_pix2struct import (
    Pix2StructImageProcessorPil,
)

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import image_spec
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError, TooLong, UnsupportedImage
from inference.processing.flattened_patches import MOST_CHARACTERS, font_file, with_header
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image
from tests.pictures import encoded, noise

SIZES = [(64, 48), (33, 91), (1, 1), (1, 40), (300, 2), (20, 20), (200, 100)]
QUESTION = "What does the sign at the corner say, and what is below it? " * 3


def _spec(folder: Path, **fields: Any) -> ImageSpec:
    values = {"image_processor_type": "Pix2StructImageProcessor", **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return image_spec(Checkpoint(folder, "x", {}))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_patches": 40, "patch_size": {"height": 4, "width": 4}},
        {"max_patches": 7, "patch_size": {"height": 6, "width": 3}, "do_normalize": False},
    ],
)
def test_patches_are_those_of_the_processor(fields: dict[str, Any], tmp_path: Path) -> None:
    spec, processor = _spec(tmp_path, **fields), Pix2StructImageProcessorPil(**fields)
    most, patch = fields["max_patches"], fields["patch_size"]
    assert spec.shape == (most, patch["height"] * patch["width"] + 1, 3)
    for size in SIZES:
        image, place = noise(*size), str(size)
        wanted = processor(image, return_tensors="np")["flattened_patches"][0]
        ours = read_image(encoded(image), ImageLimits(), spec).pixels
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours[:, -1, :2], wanted[:, :2], err_msg=place)
        given = ours[:, :-1].reshape(most, -1)
        scale = max(1.0, float(np.abs(wanted[:, 2:]).max()))
        # both compute in float32, in another order
        np.testing.assert_allclose(given, wanted[:, 2:], atol=1e-5 * scale, err_msg=place)


def test_an_even_image_is_not_divided_by_nothing(tmp_path: Path) -> None:
    spec = _spec(tmp_path, max_patches=6)
    grey = encoded(Image.new("RGB", (30, 20), (90, 90, 90)))
    assert not read_image(grey, ImageLimits(), spec).pixels[:, :-1].any()


@pytest.mark.parametrize("size", [(64, 48), (2000, 500), (30, 30)])
def test_text_above_an_image_is_drawn_as_by_the_processor(
    size: tuple[int, int], tmp_path: Path
) -> None:
    """With the same font, which the processor takes as a file's bytes."""
    processor = Pix2StructImageProcessorPil(is_vqa=True)
    image = noise(*size)
    pixels = np.asarray(image).transpose(2, 0, 1)
    wanted = processor.render_header(pixels, QUESTION, font_bytes=font_file())
    ours = np.asarray(with_header(image, QUESTION)).transpose(2, 0, 1)
    np.testing.assert_array_equal(ours, wanted)
    spec = _spec(tmp_path, is_vqa=True, max_patches=30)
    assert spec.patches.has_header
    with_text = read_image(encoded(image), ImageLimits(), spec, QUESTION)
    assert (with_text.pixels != read_image(encoded(image), ImageLimits(), spec).pixels).any()


def test_texts_and_images_of_no_bound_are_refused() -> None:
    with pytest.raises(TooLong, match="at most 1000 are drawn"):
        with_header(noise(40, 30), "a" * (MOST_CHARACTERS + 1))
    assert with_header(noise(40, 30), "a " * (MOST_CHARACTERS // 2)).height > 400
    for size in ((1, 4000), (60000, 1)):
        with pytest.raises(UnsupportedImage, match="too extreme an aspect ratio"):
            with_header(noise(*size), QUESTION)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_patches": 0}, "max_patches must be a whole number ≥ 1"),
        ({"max_patches": 9000}, "only 1 to 8192"),
        ({"patch_size": {"height": 0, "width": 4}}, "patch_size: height must be"),
        ({"patch_size": 16}, "patch_size = 16"),
    ],
)
def test_other_patches_are_refused_by_name(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(tmp_path, **fields)
