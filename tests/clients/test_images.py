"""An image in any form becomes the same base64."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.pictures import encoded, noise
from triptych import images
from triptych.errors import UnreadableImage
from triptych.operation import operation
from triptych.tasks.caption import TASK, CaptionRequest, CaptionResponse


@pytest.fixture
def png() -> bytes:
    return encoded(noise(7, 5))


def test_paths_bytes_and_files_are_sent_as_they_are(png: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png)
    with path.open("rb") as file:
        sent = {images.encode(given) for given in (path, str(path), png, bytearray(png), file)}
    assert sent == {base64.b64encode(png).decode()}


def test_a_pillow_image_keeps_every_pixel(png: bytes) -> None:
    image = Image.open(io.BytesIO(png))
    received = Image.open(io.BytesIO(images.decode(images.encode(image))))
    assert np.array_equal(np.asarray(received), np.asarray(image))


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_base64_and_data_uris_pass_as_they_are(png: bytes, prefix: str) -> None:
    text = prefix + base64.b64encode(png * 100).decode()
    assert images.encode(text) == text


@pytest.mark.parametrize("name", ["boat.png", "boat", "/nowhere/boat.png", "", "a\0b"])
def test_missing_file_is_an_error(name: str) -> None:
    with pytest.raises(UnreadableImage, match="no such file"):
        images.encode(name)


def test_a_missing_path_and_a_folder_are_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UnreadableImage, match="cannot read"):
            images.encode(path)


def test_other_objects_are_refused() -> None:
    with pytest.raises(UnreadableImage, match="int is not an image"):
        images.encode(3)


def test_one_image_and_many_are_distinguished(png: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png)
    image = Image.open(io.BytesIO(png))
    with path.open("rb") as file:
        for one in (png, path, str(path), file, image):
            request = operation(TASK, CaptionResponse, images=one).request
            assert isinstance(request, CaptionRequest)
            assert len(request.images) == 1
    request = operation(TASK, CaptionResponse, images=[png, path]).request
    assert isinstance(request, CaptionRequest)
    assert len(request.images) == 2
