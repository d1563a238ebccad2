"""A transparent colour at each depth and colour type of PNG, and each mode with alpha."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from inference.processing.image import decode_image, to_rgb

WHITE = (255, 255, 255)
GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth: int, colour: int, row: list[int], transparent: list[int] | None = None) -> bytes:
    """One row of samples; a palette has levels of grey."""
    bits = "".join(f"{sample:0{depth}b}" for sample in row)
    packed = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    channels = {GREY: 1, COLOUR: 3, PALETTE: 1, GREY_ALPHA: 2, COLOUR_ALPHA: 4}[colour]
    head = struct.pack(">IIBBBBB", len(row) // channels, 1, depth, colour, 0, 0, 0)
    chunks = [chunk(b"IHDR", head)]
    if colour == PALETTE:
        chunks.append(chunk(b"PLTE", bytes(level for level in range(4) for _ in range(3))))
    if transparent is not None:
        form = "B" if colour == PALETTE else "H"
        chunks.append(chunk(b"tRNS", struct.pack(f">{len(transparent)}{form}", *transparent)))
    chunks += [chunk(b"IDAT", zlib.compress(b"\0" + packed)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def shown(data: bytes) -> list[tuple[int, ...]]:
    image = decode_image(data)
    return [image.getpixel((x, 0)) for x in range(image.width)]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_grey_is_white_at_each_depth(depth: int) -> None:
    most = 2**depth - 1
    for transparent in {0, 1, most // 2, most}:
        others = sorted({0, 1, most // 3, most - 1} - {transparent})
        found = shown(png(depth, GREY, [transparent, *others], [transparent]))
        assert found[0] == WHITE
        for value, pixel in zip(others, found[1:], strict=True):
            level = value >> 8 if depth == 16 else value * 255 // most
            assert pixel == (level,) * 3, (depth, transparent, value)


@pytest.mark.parametrize("depth", [8, 16])
def test_transparent_colour_is_white_where_all_bits_are_equal(depth: int) -> None:
    scale = 257 if depth == 16 else 1
    colour = [3 * scale, 7 * scale, 11 * scale]
    near = [colour[0] + 1, *colour[1:]]
    other = [200 * scale, *colour[1:]]
    found = shown(png(depth, COLOUR, [*colour, *near, *other], colour))
    assert found == [WHITE, (3 if depth == 16 else 4, 7, 11), (200, 7, 11)]
    assert shown(png(depth, COLOUR, [*colour, *near], other)) == [(3, 7, 11), found[1]]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_transparent_entries_of_a_palette_are_white(depth: int) -> None:
    assert shown(png(depth, PALETTE, [0, 1, 1], [0])) == [WHITE, (1, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("depth", [8, 16])
def test_alpha_is_composed_at_each_depth(depth: int) -> None:
    most = 2**depth - 1
    grey = shown(png(depth, GREY_ALPHA, [0, 0, 0, most, most // 2, most // 2]))
    assert (grey[0], grey[1]) == (WHITE, (0, 0, 0))
    assert grey[2][0] in range(190, 193)
    colour = shown(png(depth, COLOUR_ALPHA, [most, 0, 0, 0, most, 0, 0, most]))
    assert colour == [WHITE, (255, 0, 0)]


def test_rotated_image_keeps_its_transparent_colour() -> None:
    image = Image.open(io.BytesIO(png(16, COLOUR, [1000, 2000, 3000, 9, 9, 9], [1000, 2000, 3000])))
    assert image.info["transparency"] == (1000, 2000, 3000)
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    whole = png(16, COLOUR, [1000, 2000, 3000, 9, 9, 9], [1000, 2000, 3000])
    place = whole.index(b"IDAT") - 4
    turned = whole[:place] + chunk(b"eXIf", exif.tobytes()[6:]) + whole[place:]
    assert shown(turned) == [(0, 0, 0), WHITE]
    grey = png(16, GREY, [1000, 9], [1000])
    place = grey.index(b"IDAT") - 4
    assert shown(grey[:place] + chunk(b"eXIf", exif.tobytes()[6:]) + grey[place:]) == [
        (0,) * 3,
        WHITE,
    ]


@pytest.mark.parametrize("mode", ["LA", "PA", "RGBA", "RGBa"])
def test_each_mode_with_alpha_is_composed(mode: str) -> None:
    assert np.asarray(to_rgb(Image.new(mode, (2, 1)))).tolist() == [[[255] * 3] * 2]
