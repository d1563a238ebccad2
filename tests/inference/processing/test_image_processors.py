"""Pixels of models with image processors of their own, against these processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import image_spec
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError, TooLong, UnsupportedImage
from inference.processing.flattened_patches import MOST_CHARACTERS, font_file, with_header
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


CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"vision_config": {"temporal_patch_size": 2}},
    "LlavaNext": {"vision_config": {"patch_size": 10}},
    "LlavaOnevision": {"vision_config": {"patch_size": 10}},
}
"""Fields of `config.json` that a processor's recipe depends on."""


def read_spec(folder: Path, processor: str, **fields: Any) -> ImageSpec:
    """The recipe of a checkpoint whose processor has these fields."""
    values = {"image_processor_type": f"{processor}ImageProcessor", **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return image_spec(Checkpoint(folder, "x", CONFIGS.get(processor, {})))


def processor_of(name: str, **fields: Any) -> Any:
    return getattr(transformers, f"{name}ImageProcessorPil")(**fields)


def read_both(folder: Path, name: str, **fields: Any) -> tuple[ImageSpec, Any]:
    """The recipe, and the processor of `transformers`, which leaves pixels as bytes."""
    processor = processor_of(name, **fields, do_rescale=False, do_normalize=False)
    return read_spec(folder, name, **fields), processor


@pytest.mark.parametrize("title", RECIPES)
def test_images_are_those_of_the_processor(title: str, tmp_path: Path) -> None:
    fields = RECIPES[title]
    spec, processor = read_both(tmp_path, "Qwen2VL", **fields)
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
    spec, image = read_spec(tmp_path, "Qwen2VL"), noise(201, 1)
    with pytest.raises(ValueError, match="aspect ratio"):
        processor_of("Qwen2VL")(image)
    with pytest.raises(UnsupportedImage, match="201x1 has too extreme an aspect ratio"):
        read_image(encoded(image), ImageLimits(), spec)


TILES_SIZES = [(64, 48), (33, 91), (1, 1), (1, 40), (40, 1), (20, 20), (7, 200), (200, 100)]
TILES_SIZES += [(61, 60)]
TILES_RECIPES: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("title", TILES_RECIPES)
def test_tiles_are_those_of_the_processor(title: str, tmp_path: Path) -> None:
    spec, processor = read_both(tmp_path, "Idefics3", **TILES_RECIPES[title])
    for size in TILES_SIZES:
        image = noise(*size)
        wanted = processor(image, return_row_col_info=True, return_tensors="np")
        ours = read_image(encoded(image), ImageLimits(), spec)
        pixels = wanted["pixel_values"][0].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(ours.images, pixels, err_msg=str(size))
        assert ours.grid == (wanted["rows"][0][0], wanted["cols"][0][0]), size
        assert wanted["pixel_attention_mask"].all()  # why the graph has no mask


@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize(("least", "most"), [(20, 50), (7, 60), (30, 30)])
def test_pictures_and_their_quarters_are_those_of_idefics2(
    least: int, most: int, is_divided: bool, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"size": {"shortest_edge": least, "longest_edge": most}}
    fields["do_image_splitting"] = is_divided
    spec, processor = read_both(tmp_path, "Idefics2", **fields)
    for size in TILES_SIZES:
        if is_divided and min(size) < 2:
            with pytest.raises(UnsupportedImage, match="too extreme an aspect ratio"):
                read_image(encoded(noise(*size)), ImageLimits(), spec)
            continue
        wanted = processor(noise(*size), return_tensors="np")
        ours = read_image(encoded(noise(*size)), ImageLimits(), spec)
        masks, values = wanted["pixel_attention_mask"][0], wanted["pixel_values"][0]
        assert ours.grid == ((2, 2) if is_divided else (0, 0))
        for found, pixels, mask in zip(ours.images, values, masks, strict=True):
            height, width = found.shape[:2]
            assert mask.sum() == mask[:height, :width].sum() == height * width
            np.testing.assert_array_equal(found, pixels[:, :height, :width].transpose(1, 2, 0))


def test_longest_edge_is_bounded_as_by_the_processor(tmp_path: Path) -> None:
    fields = {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 1024}}
    (spec, processor), image = read_both(tmp_path, "Idefics3", **fields), noise(30, 7)
    wanted = processor(image, return_tensors="np")["pixel_values"][0].transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(read_image(encoded(image), ImageLimits(), spec).images, wanted)


@pytest.mark.parametrize(("least", "most"), [(1, 12), (1, 1), (3, 4), (2, 16)])
def test_grid_of_tiles_is_the_one_that_the_processor_takes(
    least: int, most: int, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"size": {"height": 12, "width": 20}, "crop_to_patches": False}
    fields |= {"min_patches": least, "max_patches": most}
    (spec, processor), grids = read_both(tmp_path, "GotOcr2", **fields), set()
    for size in (*TILES_SIZES, (24, 12), (60, 60), (24, 24), (120, 80), (160, 40)):
        image = noise(*size)
        wanted = processor(image, crop_to_patches=True, return_tensors="np")
        ours = read_image(encoded(image), ImageLimits(), spec)
        pixels = wanted["pixel_values"].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(ours.images, pixels, err_msg=str(size))
        grids.add(ours.grid)
    assert len(grids) > 2 or most == 1


@pytest.mark.parametrize(("least", "most"), [(20, 4), (12, 3), (4, 2)])
def test_parts_of_long_images_are_those_of_the_processor(
    least: int, most: int, tmp_path: Path
) -> None:
    fields = {"size": {"height": 12, "width": 20}, "do_pan_and_scan": True}
    fields |= {"pan_and_scan_min_crop_size": least, "pan_and_scan_max_num_crops": most}
    fields["pan_and_scan_min_ratio_to_activate"] = 1.3
    (spec, processor), counts = read_both(tmp_path, "Gemma3", **fields), set()
    for size in (*TILES_SIZES, (100, 24)):
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
    fields = {"size": {"height": 12, "width": 20}, **change}
    off = read_spec(tmp_path, "Gemma3", **fields, do_pan_and_scan=None)
    assert off.tiles is None, "the published files have nulls"
    with pytest.raises(CheckpointError, match=message):
        read_spec(tmp_path, "Gemma3", **fields, do_pan_and_scan=True)


NEXT: dict[str, Any] = {
    "size": {"shortest_edge": 20},
    "crop_size": {"height": 20, "width": 20},
    "image_grid_pinpoints": [[20, 20], [40, 20], [20, 60], [40, 40]],
}


ONEVISION = {"size": NEXT["crop_size"], "image_grid_pinpoints": NEXT["image_grid_pinpoints"]}


@pytest.mark.parametrize("resample", [2, 3])
@pytest.mark.parametrize(("name", "fields"), [("LlavaNext", NEXT), ("LlavaOnevision", ONEVISION)])
def test_canvas_holds_the_tiles_of_the_processor(
    name: str, fields: dict[str, Any], resample: int, tmp_path: Path
) -> None:
    spec, processor = read_both(tmp_path, name, **fields, resample=resample)
    for size in TILES_SIZES:
        image = noise(*size)
        wanted = processor(image, return_tensors="np")["pixel_values"][0].transpose(0, 2, 3, 1)
        canvas = read_image(encoded(image), ImageLimits(), spec).pixels
        rows, columns = canvas.shape[0] // 20 - 1, canvas.shape[1] // 20
        assert len(wanted) == rows * columns + 1, size
        np.testing.assert_array_equal(canvas[:20, :20], wanted[0], err_msg=str(size))
        tiles = canvas[20 : 20 + rows * 20, : columns * 20].reshape(rows, 20, columns, 20, 3)
        tiles = tiles.swapaxes(1, 2).reshape(-1, 20, 20, 3)
        np.testing.assert_array_equal(tiles, wanted[1:], err_msg=str(size))


@pytest.mark.parametrize(("most", "resample"), [(4, 2), (1, 3), (2, 2), (6, 1)])
def test_whole_tiles_of_a_canvas_are_those_of_the_processor(
    most: int, resample: int, tmp_path: Path
) -> None:
    fields = {"size": NEXT["crop_size"], "max_image_tiles": most, "resample": resample}
    (spec, processor), numbers = read_both(tmp_path, "Mllama", **fields), set()
    for size in (*TILES_SIZES, (1, 90), (20, 41), (25, 20), (7, 5), (40, 40), (81, 39)):
        image = noise(*size)
        wanted = processor(image, return_tensors="np")
        canvas = read_image(encoded(image), ImageLimits(), spec).pixels
        rows, columns = canvas.shape[0] // 20, canvas.shape[1] // 20
        tiles = canvas.reshape(rows, 20, columns, 20, 3).swapaxes(1, 2).reshape(-1, 20, 20, 3)
        pixels = wanted["pixel_values"][0, 0].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(tiles, pixels[: len(tiles)], err_msg=str(size))
        assert wanted["num_tiles"] == [[rows * columns]], size
        number = wanted["aspect_ratio_ids"][0, 0]
        assert spec.tiles.grids[number - 1] == (rows, columns), size
        numbers.add(number)
    assert len(numbers) > 2 or most < 3


def test_image_that_no_resolution_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedImage, match="1x300 has too extreme an aspect ratio"):
        read_image(encoded(noise(1, 300)), ImageLimits(), read_spec(tmp_path, "LlavaNext", **NEXT))


PATCHES_SIZES = [(64, 48), (33, 91), (1, 1), (1, 40), (300, 2), (20, 20), (200, 100)]
QUESTION = "What does the sign at the corner say, and what is below it? " * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"max_patches": 40, "patch_size": {"height": 4, "width": 4}},
        {"max_patches": 7, "patch_size": {"height": 6, "width": 3}, "do_normalize": False},
    ],
)
def test_patches_are_those_of_the_processor(fields: dict[str, Any], tmp_path: Path) -> None:
    spec = read_spec(tmp_path, "Pix2Struct", **fields)
    processor = processor_of("Pix2Struct", **fields)
    most, patch = fields["max_patches"], fields["patch_size"]
    assert spec.shape == (most, patch["height"] * patch["width"] + 1, 3)
    for size in PATCHES_SIZES:
        image, place = noise(*size), str(size)
        wanted = processor(image, return_tensors="np")["flattened_patches"][0]
        ours = read_image(encoded(image), ImageLimits(), spec).pixels
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours[:, -1, :2], wanted[:, :2], err_msg=place)
        given = ours[:, :-1].reshape(most, -1)
        scale = max(1.0, float(np.abs(wanted[:, 2:]).max()))
        # both compute in float32, in another order
        np.testing.assert_allclose(given, wanted[:, 2:], atol=1e-5 * scale, err_msg=place)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_num_patches": 7, "patch_size": 6, "resample": 3, "do_rescale": False},
        {"max_num_patches": 23, "image_mean": [0.1, 0.2, 0.3], "do_normalize": False},
    ],
)
def test_patches_rounded_up_are_those_of_the_processor(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    spec = read_spec(tmp_path, "Siglip2", **fields)
    for size in [*PATCHES_SIZES, (1, 16_000), (1000, 1001)]:
        image, place = noise(*size), str(size)
        wanted = processor_of("Siglip2", **fields)(image, return_tensors="np")
        ours = read_image(encoded(image), ImageLimits(), spec).pixels
        assert (ours.shape, ours.dtype) == (spec.shape, np.float32)
        rows, columns = ours[:, -1, :2].max(axis=0).astype(int)
        assert [rows, columns] == wanted["spatial_shapes"][0].tolist(), place
        np.testing.assert_array_equal(ours[:, -1, 0] > 0, wanted["pixel_attention_mask"][0])
        mean, std = np.float32(spec.mean), np.float32(spec.std)
        given = (ours[: rows * columns, :-1] * np.float32(spec.rescale) - mean) / std
        read = wanted["pixel_values"][0, : rows * columns]
        np.testing.assert_allclose(given.reshape(read.shape), read, rtol=1e-5, atol=1e-6)


def test_an_even_image_is_not_divided_by_nothing(tmp_path: Path) -> None:
    spec = read_spec(tmp_path, "Pix2Struct", max_patches=6)
    grey = encoded(Image.new("RGB", (30, 20), (90, 90, 90)))
    assert not read_image(grey, ImageLimits(), spec).pixels[:, :-1].any()


@pytest.mark.parametrize("size", [(64, 48), (2000, 500), (30, 30)])
def test_text_above_an_image_is_drawn_as_by_the_processor(
    size: tuple[int, int], tmp_path: Path
) -> None:
    """With the same font, which the processor takes as a file's bytes."""
    processor = processor_of("Pix2Struct", is_vqa=True)
    image = noise(*size)
    pixels = np.asarray(image).transpose(2, 0, 1)
    wanted = processor.render_header(pixels, QUESTION, font_bytes=font_file())
    ours = np.asarray(with_header(image, QUESTION)).transpose(2, 0, 1)
    np.testing.assert_array_equal(ours, wanted)
    spec = read_spec(tmp_path, "Pix2Struct", is_vqa=True, max_patches=30)
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


# fmt: off
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Qwen2VL", {"min_pixels": 99, "max_pixels": 98},
     "min_pixels = 99 is over max_pixels = 98"),
    ("Qwen2VL", {"max_pixels": 0}, "max_pixels must be a whole number"),
    ("Qwen2VL", {"temporal_patch_size": 1}, "temporal_patch_size is not the 2 of config.json"),
    ("LlavaNext", {**NEXT, "image_grid_pinpoints": [[20, 30]]},
     "only heights and widths of 1 to 16 times 20"),
    ("LlavaNext", {**NEXT, "crop_size": {"height": 10, "width": 10}}, "are not one square's"),
    ("Idefics2", {"size": {"height": 8, "width": 8}}, "only a shortest_edge and a longest_edge"),
    ("Idefics2", {"do_pad": False}, "do_pad = false"),
    ("Idefics3", {"size": {"height": 8, "width": 8}}, "only a longest edge is"),
    ("Idefics3", {"size": {"longest_edge": 17 * 364}}, "only 1 to 16 times the 364"),
    ("Idefics3", {"size": {"longest_edge": 0}}, "a longest edge of 0"),
    ("Idefics3", {"max_image_size": {"height": 8}}, "max_image_size"),
    ("Idefics3", {"do_resize": False}, "do_resize = false"),
    ("GotOcr2", {"max_patches": 17}, "max_patches = 17 are not supported, only 1 to 16"),
    ("GotOcr2", {"min_patches": 3, "max_patches": 2}, "min_patches = 3 and max_patches = 2"),
    ("Mllama", {"max_image_tiles": 17}, "max_image_tiles = 17"),
    ("Mllama", {"size": {"height": 8, "width": 9}}, r"size = \(8, 9\) are not"),
    ("Mllama", {"do_pad": False}, "do_pad = false"),
    ("Pix2Struct", {"max_patches": 0}, "max_patches must be a whole number ≥ 1"),
    ("Pix2Struct", {"max_patches": 9000}, "only 1 to 8192"),
    ("Pix2Struct", {"patch_size": {"height": 0, "width": 4}}, "patch_size: height must be"),
    ("Pix2Struct", {"patch_size": 16}, "patch_size = 16"),
    ("Siglip2", {"max_num_patches": 9000}, "max_num_patches = 9000 is not supported, only 1 to"),
    ("Siglip2", {"do_resize": False}, "do_resize = False is not supported"),
    ("Siglip2", {"patch_size": 0}, "patch_size must be a whole number"),
]
# fmt: on


@pytest.mark.parametrize(("processor", "fields", "message"), REFUSED)
def test_recipe_that_cannot_be_followed_is_refused_by_name(
    processor: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_spec(tmp_path, processor, **fields)
