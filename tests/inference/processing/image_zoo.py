"""Odd image files, each with the picture or the error that it must give."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageDraw

from inference.errors import PayloadTooLarge, ServingError, UnsupportedImage
from tests.inference.processing.test_image import WHITE, chunk, png_header
from tests.pictures import encoded

Colour = tuple[int, int, int]
RED, BLUE, BLACK, MIDDLE_GREY = (255, 0, 0), (0, 0, 255), (0, 0, 0), (128,) * 3
SIZE = (12, 8)


@dataclass(frozen=True)
class Picture:
    """The expected size (width, height), and the colours of its left and right half."""

    size: tuple[int, int]
    left: Colour
    right: Colour
    tolerance: int = 0


Expected = Picture | type[ServingError]
ZOO: dict[str, tuple[bytes, Expected]] = {}
PLAIN = Picture(SIZE, RED, BLUE)
LOSSY = Picture(SIZE, RED, BLUE, tolerance=60)
DAMAGED, TOO_LARGE = UnsupportedImage, PayloadTooLarge


def halves(mode: str = "RGB", size: tuple[int, int] = SIZE) -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", size, RED)
    ImageDraw.Draw(image).rectangle((size[0] // 2, 0, *size), fill=BLUE)
    return image.convert(mode)


def add(name: str, data: bytes, expected: Expected) -> None:
    """Add one file."""
    assert name not in ZOO
    ZOO[name] = (data, expected)


def _formats() -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        add(f"{kind} plain", encoded(halves(), kind), PLAIN)
    add("GIF plain", encoded(halves(), "GIF"), PLAIN)
    add("WEBP lossless", encoded(halves(), "WEBP", lossless=True), PLAIN)
    add("JPEG plain", encoded(halves(), "JPEG", quality=95, subsampling=0), LOSSY)
    add("JPEG progressive", encoded(halves(), "JPEG", progressive=True, quality=95), LOSSY)
    add("JPEG grey", encoded(halves("L"), "JPEG"), Picture(SIZE, (76,) * 3, (29,) * 3, 30))
    add("JPEG CMYK", encoded(halves("CMYK"), "JPEG", quality=95), LOSSY)
    add("TIFF compressed", encoded(halves(), "TIFF", compression="tiff_lzw"), PLAIN)
    add("PNG interlaced name", encoded(halves(), "PNG", optimize=True), PLAIN)


def _modes() -> None:
    grey = Picture(SIZE, (76,) * 3, (29,) * 3)
    add("PNG L", encoded(halves("L"), "PNG"), grey)
    add("PNG LA opaque", encoded(halves("LA"), "PNG"), grey)
    add("PNG RGBA opaque", encoded(halves("RGBA"), "PNG"), PLAIN)
    add("PNG palette", encoded(halves("P"), "PNG"), PLAIN)
    bits = Image.new("1", SIZE, 1)
    ImageDraw.Draw(bits).rectangle((6, 0, *SIZE), fill=0)
    add("PNG one bit", encoded(bits, "PNG"), Picture(SIZE, WHITE, BLACK))
    deep = Image.new("I;16", SIZE, 128 << 8)
    add("PNG 16 bits grey", encoded(deep, "PNG"), Picture(SIZE, MIDDLE_GREY, MIDDLE_GREY))
    clear = halves("RGBA")
    clear.putalpha(0)
    add("PNG fully clear", encoded(clear, "PNG"), Picture(SIZE, WHITE, WHITE))
    add("WEBP clear", encoded(clear, "WEBP", lossless=True), Picture(SIZE, WHITE, WHITE))
    add("GIF clear colour", encoded(halves("P"), "GIF", transparency=halves("P").getpixel((0, 0))),
        Picture(SIZE, WHITE, BLUE))  # fmt: skip
    add("TIFF floats", encoded(Image.new("F", SIZE, 0.5), "TIFF"), DAMAGED)


def _sizes() -> None:
    for size in ((1, 1), (1, 3), (3, 1), (1, 999), (999, 1)):
        add(
            f"{size[0]}x{size[1]}",
            encoded(Image.new("RGB", size, RED), "PNG"),
            Picture(size, RED, RED),
        )
    add("too many pixels", png_header(20_000, 20_000), TOO_LARGE)
    add("too long a side", png_header(70_000, 1), TOO_LARGE)
    add("2^31 a side", png_header(2**31 - 1, 2**31 - 1), TOO_LARGE)
    add("no width", png_header(0, 5), DAMAGED)
    add("no rows", png_header(5, 5, b""), DAMAGED)
    wide = encoded(Image.new("L", (16_384, 300)), "PNG")
    add("small file of 5 million pixels", wide, Picture((16_384, 300), BLACK, BLACK))


def _turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: shown rotated by a quarter
    turned = encoded(halves(), "JPEG", exif=exif, quality=95, subsampling=0)
    add("EXIF turned", turned, Picture((8, 12), (170, 0, 85), (170, 0, 85), 255))
    add("EXIF damaged", encoded(halves(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff", quality=95), LOSSY)
    add("EXIF of PNG", encoded(halves(), "PNG", exif=exif), Picture((8, 12), RED, RED, 255))


def _frames() -> None:
    frames = [halves(), Image.new("RGB", SIZE, WHITE)]
    for kind in ("GIF", "PNG", "TIFF"):
        more = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        add(f"{kind} of two frames", more, PLAIN)
    webp = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    add("WEBP of two frames", webp, PLAIN)


def _damaged() -> None:
    whole = encoded(halves(size=(200, 100)), "JPEG")
    for share in (0.1, 0.5, 0.95):
        add(f"JPEG cut at {share}", whole[: int(len(whole) * share)], DAMAGED)
    add("PNG cut", encoded(halves(), "PNG")[:60], DAMAGED)
    add("GIF cut", encoded(halves(), "GIF")[:20], DAMAGED)
    flipped = bytearray(encoded(halves(), "PNG"))
    flipped[45] ^= 255
    add("PNG wrong checksum", bytes(flipped), DAMAGED)
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))
    add("PNG text bomb", png_header(1, 1, b"\0abc", text), DAMAGED)
    add("bytes after the end", encoded(halves(), "PNG") + b"<script>" * 99, PLAIN)
    add("JPEG named PNG's header", b"\x89PNG\r\n\x1a\n" + whole[8:], DAMAGED)


def _others() -> None:
    add("empty", b"", DAMAGED)
    add("text", b"hello", DAMAGED)
    add("HTML", b"<html><img src='a.png'></html>", DAMAGED)
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
    add("SVG", svg, DAMAGED)
    add("PDF", b"%PDF-1.7\n%%EOF", DAMAGED)
    add("EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", DAMAGED)
    add("ICO", encoded(halves("RGBA", (16, 16)), "ICO"), DAMAGED)
    add("TGA", encoded(halves(), "TGA"), DAMAGED)
    add("zip", b"PK\3\4" + bytes(30), DAMAGED)


_PARTS: tuple[Callable[[], None], ...] = (
    _formats,
    _modes,
    _sizes,
    _turned,
    _frames,
    _damaged,
    _others,
)
for _part in _PARTS:
    _part()
