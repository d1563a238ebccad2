"""Image recipes give the pixels of `transformers`' processors."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import AutoImageProcessor

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import MOST_PIXELS, image_spec, limit_pixels
from export.graphs.source_model import SourceModel
from export.layers.images.vision import PixelNorm
from export.pipeline.manifest import Request, content_hash
from inference.bundle.inputs import ImageSpec, PixelRange
from inference.errors import CheckpointError, UnsupportedImage
from inference.processing.image import decode_image, prepare_image
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED
from tests.pictures import encoded, noise

RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {}),
    "vit, rectangular, nearest": ("ViT", {"size": {"height": 40, "width": 56}, "resample": 0}),
    "vit, one number": ("ViT", {"size": 48}),
    "vit, crop": ("ViT", {"size": 48, "do_center_crop": True, "crop_size": 32}),
    "vit, not normalised": ("ViT", {"do_normalize": False, "size": 30}),
    "vit, not rescaled": ("ViT", {"do_rescale": False, "size": 30}),
    "vit, other factor": ("ViT", {"rescale_factor": 1 / 127.5, "size": 30, "resample": 1}),
    "deit": ("DeiT", {}),
    "deit, no crop": ("DeiT", {"do_center_crop": False, "size": 40}),
    "beit, crop": ("Beit", {"do_center_crop": True, "size": 48, "crop_size": 40}),
    "segformer": ("Segformer", {"size": {"height": 60, "width": 50}}),
    "bit (DINOv2)": ("Bit", {"size": {"shortest_edge": 256}}),
    "clip": ("CLIP", {}),
    "clip, crop beyond the image": ("CLIP", {"size": 30, "crop_size": 45}),
    "clip, exact": ("CLIP", {"size": {"height": 40, "width": 33}, "crop_size": 30}),
    "chinese clip": ("ChineseCLIP", {}),
    "chinese clip, exact": (
        "ChineseCLIP",
        {"size": {"height": 40, "width": 33}, "do_center_crop": False},
    ),
    "llava": ("Llava", {"size": 40, "crop_size": 30}),
    "levit": ("Levit", {}),
    "levit, small": ("Levit", {"size": {"shortest_edge": 50}, "crop_size": 50}),
    "levit, exact": ("Levit", {"size": {"height": 60, "width": 50}, "crop_size": 50}),
    "efficientnet": ("EfficientNet", {}),
    "efficientnet, of align": (
        "EfficientNet",
        {
            "size": {"height": 60, "width": 50},
            "do_center_crop": True,
            "crop_size": 40,
            "do_normalize": False,
            "include_top": False,
            "rescale_factor": 1 / 127.5,
            "rescale_offset": True,
            "resample": 2,
        },
    ),
    "efficientnet, normalised twice": (
        "EfficientNet",
        {"rescale_offset": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    ),
    "convnext": ("ConvNext", {}),
    "convnext, cropped": ("ConvNext", {"size": {"shortest_edge": 50}, "resample": 2}),
    "convnext, small part": ("ConvNext", {"size": {"shortest_edge": 45}, "crop_pct": 0.6}),
    "blip": ("Blip", {"size": {"height": 64, "width": 64}}),
    "idefics": ("Idefics", {}),
    "idefics, older name of the size": ("Idefics", {"image_size": 48}),
    "siglip": ("Siglip", {"resample": 2}),
    "donut": ("Donut", {"size": {"height": 80, "width": 60}}),
    "donut, turned": (
        "Donut",
        {"size": {"height": 80, "width": 60}, "do_align_long_axis": True, "resample": 3},
    ),
    "donut, wide, turned": (
        "Donut",
        {"size": {"height": 60, "width": 81}, "do_align_long_axis": True, "resample": 0},
    ),
    "donut, square": ("Donut", {"size": {"height": 48, "width": 48}}),
    "perceiver": ("Perceiver", {}),
    "perceiver, rectangular": (
        "Perceiver",
        {
            "size": {"height": 40, "width": 33},
            "crop_size": {"height": 41, "width": 60},
            "resample": 2,
        },
    ),
    "perceiver, crop beyond the image": (
        "Perceiver",
        {"size": {"height": 48, "width": 48}, "crop_size": {"height": 32, "width": 32}},
    ),
    "perceiver, no crop": (
        "Perceiver",
        {"do_center_crop": False, "size": {"height": 40, "width": 56}},
    ),
}


def processor(kind: str, **fields: Any) -> Any:
    name = "chinese_clip" if kind == "ChineseCLIP" else kind.lower()
    module = f"transformers.models.{name}.image_processing_pil_{name}"
    return getattr(import_module(module), f"{kind}ImageProcessorPil")(**fields)


def corpus() -> dict[str, bytes]:
    """Title → image file."""
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [noise(20, 30), noise(20, 30).rotate(180)]
    return {
        "one pixel": encoded(noise(1, 1)),
        "1 x 3": encoded(noise(1, 3)),
        "3 x 1": encoded(noise(3, 1)),
        "wide": encoded(noise(200, 9)),
        "JPEG": encoded(noise(70, 50), "JPEG"),
        "grayscale": encoded(noise(40, 50, "L")),
        "grey with alpha": encoded(noise(40, 50, "LA")),
        "alpha": encoded(noise(40, 50, "RGBA")),
        "palette": encoded(noise(40, 50).convert("P")),
        "palette with transparency": encoded(noise(40, 50).convert("P"), transparency=3),
        "black and white": encoded(noise(40, 50).convert("1")),
        "CMYK": encoded(noise(40, 50, "CMYK"), "JPEG"),
        "rotated by EXIF": encoded(noise(40, 50), exif=exif),
        "animated": encoded(frames[0], save_all=True, append_images=frames[1:]),
    }


CORPUS = corpus()


def recipe(folder: Path, fields: dict[str, Any]) -> Any:
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    return image_spec(Checkpoint(folder, "x", {}))


def _values(processed: Any) -> Any:
    """The one image of a processor's output; Idefics' returns the pixels alone."""
    return (processed["pixel_values"] if isinstance(processed, Mapping) else processed)[0]


@pytest.mark.parametrize("title", RECIPES)
def test_pixels_are_those_of_the_processor(title: str, tmp_path: Path) -> None:
    kind, fields = RECIPES[title]
    spec = recipe(tmp_path, {"image_processor_type": f"{kind}ImageProcessor", **fields})
    plain = {"do_rescale": False, "do_normalize": False}
    plain |= {"include_top": False} if kind == "EfficientNet" else {}
    raw = processor(kind, **fields | plain)
    whole = processor(kind, **fields)
    for name, data in CORPUS.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if spec.centre is not None and int(min(spec.centre) * min(image.size)) == 0:
            continue  # nothing is left to be resized: see below
        ours = prepare_image(decode_image(data), spec)
        options = {"return_tensors": "np", "do_convert_rgb": True}
        pixels = _values(raw(image, **options))
        np.testing.assert_array_equal(ours, pixels.transpose(1, 2, 0), err_msg=name)
        values = _values(whole(image, **options))
        given = PixelNorm(spec)(torch.from_numpy(ours.copy())[None])[0].numpy()
        np.testing.assert_allclose(given, values, atol=2e-6 * np.abs(values).max(), err_msg=name)


def test_image_of_which_the_crop_leaves_nothing_is_refused(tmp_path: Path) -> None:
    spec = recipe(tmp_path, {"image_processor_type": "PerceiverImageProcessor"})
    with pytest.raises(UnsupportedImage, match="1x3 is too small"):
        prepare_image(decode_image(CORPUS["1 x 3"]), spec)


def test_older_donut_gives_width_and_height(tmp_path: Path) -> None:
    spec = recipe(tmp_path, {"feature_extractor_type": "DonutFeatureExtractor", "size": [60, 80]})
    assert (spec.resize, spec.size) == ("fit", (80, 60))


def test_image_that_fits_with_no_pixels_is_refused(tmp_path: Path) -> None:
    fields = {"image_processor_type": "DonutImageProcessor", "size": {"height": 8, "width": 6}}
    with pytest.raises(UnsupportedImage, match="too extreme"):
        prepare_image(decode_image(CORPUS["wide"]), recipe(tmp_path, fields))


@pytest.mark.parametrize(
    ("fields", "edges", "multiple", "size"),
    [
        ({}, (384, 639), 32, 256),
        ({"size": 20, "size_divisor": 8}, (20, 33), 8, 16),
        ({"size": {"shortest_edge": 300}, "size_divisor": 290}, (300, 499), 290, 290),
    ],
)
def test_images_of_vilt_keep_their_aspect_ratio(
    fields: dict[str, Any], edges: tuple[int, int], multiple: int, size: int, tmp_path: Path
) -> None:
    short = recipe(tmp_path, {"feature_extractor_type": "ViltFeatureExtractor", **fields})
    assert (short.edges, short.multiple, short.size) == (edges, multiple, (size, size))
    assert (short.resample, short.mean, short.crop) == (3, HALF, None)
    processor("Vilt", **fields).save_pretrained(tmp_path)
    assert recipe(tmp_path, json.loads((tmp_path / "preprocessor_config.json").read_text())) == (
        short
    )


@pytest.mark.parametrize("title", RECIPES)
def test_saved_processor_is_read_as_its_class(title: str, tmp_path: Path) -> None:
    """`transformers` writes every default out; a file from a hub may leave them out."""
    kind, fields = RECIPES[title]
    short = recipe(tmp_path, {"image_processor_type": f"{kind}ImageProcessor", **fields})
    processor(kind, **fields).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert recipe(tmp_path, saved) == short


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in RECIPES.values()}))
def test_null_stands_for_the_default_of_the_processor(kind: str, tmp_path: Path) -> None:
    short = {"image_processor_type": f"{kind}ImageProcessor"}
    for name, value in processor(kind).to_dict().items():
        if name in ("image_processor_type", "size"):  # Idefics' class needs a size
            continue
        assert getattr(processor(kind, **{name: None}), name) in (value, None), name
        assert recipe(tmp_path, {**short, name: None}) == recipe(tmp_path, short), name


def test_recipe_within_the_processor_takes_precedence(tmp_path: Path) -> None:
    """As in `transformers`, which writes both where a newer processor is saved over older files."""
    older, newer = processor("ViT", size=40), processor("ViT", size=48)
    older.save_pretrained(tmp_path)
    combined = tmp_path / "processor_config.json"
    for values in ({}, {"image_processor": None}):
        combined.write_text(json.dumps(values))
        assert image_spec(Checkpoint(tmp_path, "x", {})).size == (40, 40)
    combined.write_text(json.dumps({"image_processor": newer.to_dict()}))
    loaded = AutoImageProcessor.from_pretrained(tmp_path, backend="pil", trust_remote_code=False)
    assert dict(loaded.size) == dict(newer.size)
    assert image_spec(Checkpoint(tmp_path, "x", {})).size == (48, 48)


@pytest.mark.parametrize("name", ["ViTFeatureExtractor", "ViTImageProcessorFast"])
def test_older_and_faster_classes_have_the_same_recipe(name: str, tmp_path: Path) -> None:
    assert recipe(tmp_path, {"feature_extractor_type": name}) == recipe(
        tmp_path, {"image_processor_type": "ViTImageProcessor"}
    )


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("ViT", {"do_resize": False}, "do_resize = false"),
        ("ViT", {"do_pad": True}, "do_pad = true"),
        ("CLIP", {"do_center_crop": False}, "needs do_center_crop"),
        ("ViT", {"size": {"longest_edge": 9}}, "size = .* is not supported"),
        ("ViT", {"resample": 9}, "resample must be"),
        ("ViT", {"image_std": [0.5]}, "image_std must hold three"),
        ("Donut", {"do_pad": False}, "do_pad = false"),
        ("Donut", {"do_thumbnail": False}, "do_thumbnail = false"),
        ("Donut", {"do_center_crop": True, "crop_size": 9}, "do_center_crop = true"),
        ("ConvNext", {"do_center_crop": True}, "do_center_crop = true"),
        ("ConvNext", {"size": {"height": 50, "width": 50}}, "shortest_edge must be"),
        ("ConvNext", {"size": {"shortest_edge": 50}, "crop_pct": 0}, "crop_pct must be a part"),
        ("Vilt", {"size": 20}, "an edge of 20 is under size_divisor = 32"),
        ("Vilt", {"size": {"height": 8, "width": 8}}, "shortest_edge must be"),
        ("Flava", {}, "FlavaImageProcessor is not supported"),
        ("ViT", {"size": {"height": 8, "width": 4097}}, "side of 4097 pixels is over 4096"),
        ("ViT", {"image_std": [0.5, 0, 0.5]}, "a standard deviation is 0"),
        ("CLIP", {"crop_size": 2**31 - 1}, "side of 2147483647 pixels is over 4096"),
        ("CLIP", {"size": 2**31 - 1}, "side of 2147483647 pixels is over 4096"),
    ],
)
def test_recipe_that_cannot_be_followed_is_refused(
    kind: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        recipe(tmp_path, {"image_processor_type": f"{kind}ImageProcessor", **change})


HALF = (0.5, 0.5, 0.5)
FIXED = ImageSpec(resize="exact", size=(56, 56), mean=HALF, std=HALF, resample=3, rescale=1 / 255)


def recipe_pixel_limit(least: int, most: int) -> ImageSpec:
    return FIXED.model_copy(update={"pixels": PixelRange(multiple=28, least=least, most=most)})


def limited(least: int, most: int, wanted: int | None) -> int:
    sizes = limit_pixels(recipe_pixel_limit(least, most), wanted).pixels
    assert (sizes.multiple, sizes.least) == (28, least)
    return sizes.most


@pytest.mark.parametrize(
    ("allowed", "wanted", "used"),
    [
        ((3136, 12845056), None, MOST_PIXELS),
        ((3136, 500_000), None, 500_000),
        ((2_000_000, 12845056), None, 2_000_000),
        ((3136, 12845056), 12845056, 12845056),
        ((3136, 12845056), 3136, 3136),
    ],
    ids=["as published", "fewer are allowed", "more are needed", "the most", "the least"],
)
def test_pictures_have_what_is_wanted_or_at_most_1280_tokens(
    allowed: tuple[int, int], wanted: int | None, used: int
) -> None:
    assert limited(*allowed, wanted) == used


@pytest.mark.parametrize("wanted", [3135, 12845057])
def test_numbers_outside_the_recipe_are_refused(wanted: int) -> None:
    with pytest.raises(
        CheckpointError, match=rf"--max-pixels {wanted}: .* allows 3136 to 12845056"
    ):
        limited(3136, 12845056, wanted)


def test_pictures_of_a_fixed_size_have_no_limit() -> None:
    assert limit_pixels(FIXED, None) is FIXED
    with pytest.raises(CheckpointError, match=r"--max-pixels: .* fixed"):
        limit_pixels(FIXED, 50_000)


def test_a_model_without_pictures_has_no_limit(twins: Twins) -> None:
    source = SourceModel(twins("gpt2", EXPORTED).checkpoint, max_pixels=50_000)
    with pytest.raises(CheckpointError, match="--max-pixels: this model reads no pictures"):
        _ = source.preprocessing


def test_another_limit_makes_another_bundle(twins: Twins) -> None:
    checkpoint = twins("gpt2", EXPORTED).checkpoint
    hashes = {content_hash(checkpoint, Request("x", max_pixels=most)) for most in (None, 100, 200)}
    assert len(hashes) == 3
