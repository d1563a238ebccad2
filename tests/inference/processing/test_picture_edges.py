"""Sizes of pictures that keep their aspect ratio, against `transformers`."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from transformers import GroundingDinoImageProcessorPil
from transformers.image_transforms import get_size_with_aspect_ratio

from inference.errors import UnsupportedImage
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image, size_by_edges
from tests.inference.manifests import plain_recipe
from tests.pictures import encoded, noise

SPEC = plain_recipe((20, 20)).model_copy(update={"edges": (20, 33)})


def test_sizes_are_those_of_transformers() -> None:
    random = np.random.default_rng(0)
    sizes = [tuple(map(int, size)) for size in random.integers(1, 2000, (500, 2))]
    for width, height in [*sizes, (800, 800), (1333, 800), (799, 1333), (640, 480), (1, 4000)]:
        for edges in ((800, 1333), (20, 33), (7, 7)):
            wanted = get_size_with_aspect_ratio((height, width), *edges)
            assert size_by_edges((width, height), edges) == wanted


@pytest.mark.parametrize("size", [(64, 48), (20, 31), (17, 90), (90, 17)])
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    picture = noise(*size)
    processor = GroundingDinoImageProcessorPil(
        size={"shortest_edge": 20, "longest_edge": 33}, do_rescale=False, do_normalize=False
    )
    (wanted,) = processor(picture, return_tensors="np")["pixel_values"]
    found = read_image(encoded(picture), ImageLimits(), SPEC)
    assert found.size == size
    np.testing.assert_array_equal(found.pixels, wanted.transpose(1, 2, 0))


def test_a_picture_that_would_have_no_pixels_is_refused() -> None:
    picture = Image.new("RGB", (1, 500))
    with pytest.raises(UnsupportedImage, match="aspect ratio"):
        read_image(encoded(picture), ImageLimits(), SPEC)
