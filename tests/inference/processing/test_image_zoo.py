"""Odd image files give their picture or their error, decoded alone and over HTTP."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from inference.processing.image import decode_image
from tests.inference.processing.image_zoo import ZOO, Picture
from tests.serving.gateway.conftest import MakeGateway, make_gateway  # noqa: F401


def test_it_is_a_zoo() -> None:
    assert len(ZOO) >= 40


@pytest.mark.parametrize("name", ZOO)
def test_decoding(name: str) -> None:
    data, expected = ZOO[name]
    if not isinstance(expected, Picture):
        with pytest.raises(expected):
            decode_image(data)
        return
    image = decode_image(data)
    assert (image.mode, image.size) == ("RGB", expected.size)
    pixels = np.asarray(image, np.int64)
    quarter = max(1, image.width // 4)
    for part, colour in (
        (pixels[:, :quarter], expected.left),
        (pixels[:, -quarter:], expected.right),
    ):
        assert np.abs(part - colour).max() <= expected.tolerance


async def test_over_http(make_gateway: MakeGateway) -> None:  # noqa: F811
    gateway = make_gateway()
    for name, (data, expected) in ZOO.items():
        images = [base64.b64encode(data).decode()]
        as_json = await gateway.http.post("/v1/caption", json={"images": images})
        files = {"images": ("a.png", data)}
        as_form = await gateway.http.post("/v1/caption", files=files)
        status = 200 if isinstance(expected, Picture) else expected.http_status
        assert (as_json.status_code, as_form.status_code) == (status, status), name
