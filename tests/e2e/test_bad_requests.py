"""Bad input through the real stack: the right status, one sentence, no stack trace, no hang."""

from __future__ import annotations

import base64
import struct
import zlib

import httpx
import pytest
from PIL import Image

from tests.e2e.conftest import Stack
from tests.pictures import encoded

pytestmark = pytest.mark.integration


def in_base64(image: Image.Image, kind: str = "PNG", **options: object) -> str:
    return base64.b64encode(encoded(image, kind, **options)).decode()


def png_header(width: int, height: int) -> str:
    """A PNG that claims a size and ends where its pixels should begin."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
    data += struct.pack(">I", zlib.crc32(header)) + struct.pack(">I", 1000) + b"IDAT"
    return base64.b64encode(data).decode()


PICTURE = in_base64(Image.new("RGB", (64, 64), "red"))
TRUNCATED = base64.b64encode(base64.b64decode(in_base64(Image.effect_noise((64, 64), 90)))[:900])

BAD = {
    "empty text": ("translate", {"texts": [""]}, 422, "texts.0"),
    "blank text": ("translate", {"texts": ["  \n "]}, 422, "texts.0"),
    "no texts": ("translate", {"texts": []}, 422, "texts"),
    "10 000 command_line": ("translate", {"texts": ["gato " * 10_000]}, 422, "texts.0"),
    "number for text": ("translate", {"texts": [7]}, 422, "texts"),
    "unknown model": ("translate", {"texts": ["hola"], "model": "missing"}, 404, None),
    "wrong task's model": ("translate", {"texts": ["hola"], "model": "example-clip"}, 422, "model"),
    "unknown language": ("translate", {"texts": ["hola"], "target": "xx"}, 422, None),
    "zero beams": ("translate", {"texts": ["hola"], "num_beams": 0}, 422, "num_beams"),
    "unknown field": ("translate", {"texts": ["hola"], "colour": 1}, 422, "colour"),
    "not base64": ("caption", {"images": ["%%%"]}, 415, "images.0"),
    "not an image": ("caption", {"images": ["aGVsbG8gd29ybGQ="]}, 415, "images.0"),
    "truncated image": ("caption", {"images": [TRUNCATED.decode()]}, 415, "images.0"),
    "huge header": ("caption", {"images": [png_header(20_000, 20_000)]}, 413, "images.0"),
    "no labels": ("zero-shot", {"images": [PICTURE], "labels": []}, 422, "labels"),
    "1001 labels": ("zero-shot", {"images": [PICTURE], "labels": ["a"] * 1001}, 422, "labels"),
    "empty label": ("zero-shot", {"images": [PICTURE], "labels": ["a", ""]}, 422, "labels.1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_refused_by_name(stack: Stack, name: str) -> None:
    route, body, status, field = BAD[name]
    answer = httpx.post(f"{stack.url}/v1/{route}", json=body, timeout=30)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"]
    assert "Traceback" not in answer.text
    if field is not None:
        assert error["field"].startswith(field)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"\xff\xfe", 400), (b'{"texts": ["hola"], "length_penalty": NaN}', 422)],
)
def test_a_body_that_is_not_json_is_refused(stack: Stack, content: bytes, status: int) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{stack.url}/v1/translate", content=content, headers=headers, timeout=30)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"]


@pytest.mark.parametrize(
    "picture",
    [
        Image.new("RGB", (1, 1)),
        Image.new("L", (1, 3)),
        Image.new("CMYK", (40, 30)),
        Image.new("P", (40, 30)),
        Image.new("LA", (40, 30)),
        Image.new("I;16", (40, 30)),
    ],
    ids=lambda picture: f"{picture.mode} {picture.size}",
)
def test_odd_pictures_are_ordinary_input(stack: Stack, picture: Image.Image) -> None:
    kind = "TIFF" if picture.mode == "CMYK" else "PNG"
    body = {"images": in_base64(picture, kind)}
    answer = httpx.post(f"{stack.url}/v1/caption", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"][0]["text"]


def test_a_bad_item_leaves_its_neighbours_alone(stack: Stack) -> None:
    body = {"images": [PICTURE, "aGVsbG8=", PICTURE]}
    answer = httpx.post(f"{stack.url}/v1/caption", json=body, timeout=30)
    assert answer.status_code == 200
    first, bad, last = answer.json()["data"]
    assert first["text"] == last["text"] != ""
    assert bad["error"]["type"] == "unsupported_image"
    assert [item["index"] for item in (first, bad, last)] == [0, 1, 2]
