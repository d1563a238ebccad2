"""Tiles of images against the processors of Idefics3 and LLaVA-NeXT, through recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import image_spec
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError, UnsupportedImage
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image
from tests.pictures import encoded, noise

SIZES = [(64, 48), (33, 91), (1, 1), (1, 40), (40, 1), (20, 20), (7, 200), (200, 100), (61, 60)]
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {"size": {"longest_edge": 80}, "max_image_size": {"longest_edge": 20}},
    "uneven": {"size": {"longest_edge": 75}, "max_image_size": {"longest_edge": 23}},
    "one tile": {"size": {"longest_edge": 20}, "max_image_size": {"longest_edge": 20}},
    "other filter": {
        "size": {"longest_edge": 50},
        "max_image_size": {"longest_edge": 24},
        "resample": 3,
    },
    "not divided": {
        "size": {"longest_edge": 80},
        "max_image_size": {"longest_edge": 20},
        "do_image_splitting": False,
    },
}


def _spec(folder: Path, fields: dict[str, Any]) -> ImageSpec:
    values = {"image_processor_type": "Idefics3ImageProcessor", **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return image_spec(Checkpoint(folder, "x", {}))


@pytest.mark.parametrize("title", RECIPES)
def test_tiles_are_those_of_the_processor(title: str, tmp_path: Path) -> None:
    spec = _spec(tmp_path, RECIPES[title])
    processor = Idefics3ImageProcessorPil(**RECIPES[title], do_rescale=False, do_normalize=False)
    for size in SIZES:
        image = noise(*size)
        wanted = processor(image, return_row_col_info=True, return_tensors="np")
        ours = read_image(encoded(image), ImageLimits(), spec)
        pixels = wanted["pixel_values"][0].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(ours.images, pixels, err_msg=str(size))
        assert ours.grid == (wanted["rows"][0][0], wanted["cols"][0][0]), size
        assert wanted["pixel_attention_mask"].all()  # why the graph has no mask


def test_longest_edge_is_bounded_as_by_the_processor(tmp_path: Path) -> None:
    fields = {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 1024}}
    spec, image = _spec(tmp_path, fields), noise(30, 7)
    processor = Idefics3ImageProcessorPil(**fields, do_rescale=False, do_normalize=False)
    wanted = processor(image, return_tensors="np")["pixel_values"][0].transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(read_image(encoded(image), ImageLimits(), spec).images, wanted)


@pytest.mark.parametrize(("least", "most"), [(20, 4), (12, 3), (4, 2)])
def test_parts_of_long_images_are_those_of_the_processor(
    least: int, most: int, tmp_path: Path
) -> None:
    fields = {"size": {"height": 12, "width": 20}, "do_pan_and_scan": True}
    fields |= {"pan_and_scan_min_crop_size": least, "pan_and_scan_max_num_crops": most}
    fields["pan_and_scan_min_ratio_to_activate"] = 1.3
    values = {"image_processor_type": "Gemma3ImageProcessor", **fields}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    spec, counts = image_spec(Checkpoint(tmp_path, "x", {})), set()
    processor = Gemma3ImageProcessorPil(**fields, do_rescale=False, do_normalize=False)
    for size in (*SIZES, (100, 24)):
        image = noise(*size)
        wanted = processor(image, return_tensors="np")
        ours = read_image(encoded(image), ImageLimits(), spec)
        pixels = wanted["pixel_values"].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(ours.images, pixels, err_msg=str(size))
        assert ours.grid[1] == wanted["num_crops"][0], size
        counts.add(ours.grid)
    assert {(0, 0), (1, most)} <= counts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pan_and_scan_max_num_crops": 17}, "pan_and_scan_max_num_crops = 17"),
        ({"pan_and_scan_min_crop_size": 3}, "pan_and_scan_min_crop_size = 3"),
    ],
)
def test_parts_that_may_be_empty_or_too_many_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 12, "width": 20}}
    folder = Checkpoint(tmp_path, "x", {})
    for is_on in (None, True):  # the published files have nulls
        written = {**values, **change, "do_pan_and_scan": is_on}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
        if is_on:
            with pytest.raises(CheckpointError, match=message):
                image_spec(folder)
        else:
            assert image_spec(folder).tiles is None


def _next(folder: Path, **changes: Any) -> ImageSpec:
    square, sizes = {"height": 20, "width": 20}, [[20, 20], [40, 20], [20, 60], [40, 40]]
    values = {"image_processor_type": "LlavaNextImageProcessor", "crop_size": square}
    values |= {"size": {"shortest_edge": 20}, "image_grid_pinpoints": sizes, **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return image_spec(Checkpoint(folder, "x", {"vision_config": {"patch_size": 10}}))


@pytest.mark.parametrize("resample", [2, 3])
def test_canvas_holds_the_tiles_of_the_processor(resample: int, tmp_path: Path) -> None:
    spec = _next(tmp_path, resample=resample)
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 20},
        crop_size={"height": 20, "width": 20},
        image_grid_pinpoints=[[20, 20], [40, 20], [20, 60], [40, 40]],
        resample=resample,
        do_rescale=False,
        do_normalize=False,
    )
    for size in SIZES:
        image = noise(*size)
        wanted = processor(image, return_tensors="np")["pixel_values"][0].transpose(0, 2, 3, 1)
        canvas = read_image(encoded(image), ImageLimits(), spec).pixels
        rows, columns = canvas.shape[0] // 20 - 1, canvas.shape[1] // 20
        assert len(wanted) == rows * columns + 1, size
        np.testing.assert_array_equal(canvas[:20, :20], wanted[0], err_msg=str(size))
        tiles = canvas[20 : 20 + rows * 20, : columns * 20].reshape(rows, 20, columns, 20, 3)
        tiles = tiles.swapaxes(1, 2).reshape(-1, 20, 20, 3)
        np.testing.assert_array_equal(tiles, wanted[1:], err_msg=str(size))


def test_image_that_no_resolution_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedImage, match="1x300 has too extreme an aspect ratio"):
        read_image(encoded(noise(1, 300)), ImageLimits(), _next(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_grid_pinpoints": [[20, 30]]}, "only heights and widths of 1 to 16 times 20"),
        ({"crop_size": {"height": 10, "width": 10}}, "are not one square's"),
    ],
)
def test_another_grid_is_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _next(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": {"height": 8, "width": 8}}, "only a longest edge is"),
        ({"size": {"longest_edge": 17 * 364}}, "only 1 to 16 times the 364"),
        ({"size": {"longest_edge": 0}}, "a longest edge of 0"),
        ({"max_image_size": {"height": 8}}, "max_image_size"),
        ({"do_resize": False}, "do_resize = false"),
    ],
)
def test_another_recipe_is_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _spec(tmp_path, change)
