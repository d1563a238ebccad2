"""How large pictures may be that keep their own size."""

import pytest

from export.checkpoint.tile_recipe import MOST_PIXELS, limit_pixels
from export.graphs.source_model import SourceModel
from export.pipeline.manifest import Request, content_hash
from inference.bundle.inputs import ImageSpec, PixelRange
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED

HALF = (0.5, 0.5, 0.5)
FIXED = ImageSpec(resize="exact", size=(56, 56), mean=HALF, std=HALF, resample=3, rescale=1 / 255)


def recipe(least: int, most: int) -> ImageSpec:
    return FIXED.model_copy(update={"pixels": PixelRange(multiple=28, least=least, most=most)})


def limited(least: int, most: int, wanted: int | None) -> int:
    sizes = limit_pixels(recipe(least, most), wanted).pixels
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
