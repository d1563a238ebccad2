"""Images that are padded to a square against the Pillow processor of `transformers`."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import Owlv2ImageProcessorPil

from inference.bundle.inputs import ImageSpec
from inference.processing.image import decode_image, prepare_image
from tests.pictures import encoded, noise
from tests.traced_memory import memory_below

MEAN = (0.0, 0.0, 0.0)


def _spec(height: int, width: int) -> ImageSpec:
    return ImageSpec(
        resize="padded", size=(height, width), resample=2, mean=MEAN, std=(1, 1, 1), rescale=1 / 255
    )


@pytest.mark.parametrize("model", [(44, 44), (48, 40)])
@pytest.mark.parametrize(
    "size", [(64, 48), (33, 91), (1, 5), (5, 1), (4, 4), (32, 32), (7, 200), (500, 333)]
)
def test_pixels_equal_those_of_transformers(size: tuple[int, int], model: tuple[int, int]) -> None:
    height, width = model
    image, spec = noise(*size), _spec(height, width)
    processor = Owlv2ImageProcessorPil(size={"height": height, "width": width}, do_normalize=False)
    given = np.asarray(image.convert("RGB"))  # arrays of one row have no certain order of axes
    wanted = processor(given, input_data_format="channels_last", return_tensors="np")
    ours = prepare_image(decode_image(encoded(image)), spec)
    assert (ours.dtype, ours.shape) == (spec.dtype, spec.shape)
    np.testing.assert_allclose(
        ours / 255, wanted["pixel_values"][0].transpose(1, 2, 0), rtol=0, atol=1e-6
    )


def test_an_extreme_image_is_not_padded_in_memory() -> None:
    image = decode_image(encoded(noise(4000, 20)))  # its square has 48 MB
    with memory_below(8e6):
        prepare_image(image, _spec(64, 64))
