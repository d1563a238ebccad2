"""Our pixels against those of `transformers`' Pillow processors, and unusual files."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from transformers import (
    GroundingDinoImageProcessorPil,
    Owlv2ImageProcessorPil,
    ViltImageProcessorPil,
)
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.models.vilt.image_processing_pil_vilt import get_resize_output_image_size

from inference.bundle.inputs import ImageSpec
from inference.errors import PayloadTooLarge, ServingError, UnsupportedImage
from inference.processing.image import (
    ImageLimits,
    decode_image,
    has_too_many_scans,
    prepare_image,
    to_rgb,
)
from inference.processing.prepared_image import read_image, size_by_edges
from tests.inference.tiny_models import plain_recipe
from tests.pictures import encoded, noise
from tests.serving.gateway.conftest import MakeGateway, make_gateway  # noqa: F401
from tests.traced_memory import memory_below

MEAN = STD = (0.5, 0.5, 0.5)
EXACT = ImageSpec(resize="exact", size=(48, 40), resample=2, mean=MEAN, std=STD, rescale=1 / 255)
CROPPED = ImageSpec(
    resize="shortest_edge", size=(32, 32), crop=(32, 32), resample=3, mean=MEAN, std=STD,
    rescale=1 / 255,
)  # fmt: skip
WIDE_CROP = CROPPED.model_copy(update={"crop": (45, 37)})  # larger than the resized image: padded


def chunk(kind: bytes, data: bytes) -> bytes:
    """One chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int, rows: bytes = b"\0", before: bytes = b"") -> bytes:
    """A PNG that claims a size, whatever its rows hold."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = header + before + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def oracle(image: Image.Image, spec: ImageSpec) -> np.ndarray:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    options = {"do_rescale": False, "do_normalize": False, "resample": spec.resample}
    if spec.resize == "exact":
        height, width = spec.size
        processor = ViTImageProcessorPil(
            size={"height": height, "width": width}, do_convert_rgb=True, **options
        )
    else:
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": spec.size[0]},
            crop_size={"height": spec.crop[0], "width": spec.crop[1]},
            **options,
        )
    pixels = processor(image, return_tensors="np")["pixel_values"][0]
    return pixels.transpose(1, 2, 0)


@pytest.mark.parametrize("spec", [EXACT, CROPPED, WIDE_CROP], ids=["exact", "crop", "padded crop"])
@pytest.mark.parametrize("size", [(64, 48), (33, 91), (1, 1), (1, 3), (3, 1), (32, 32), (7, 200)])
def test_pixels_equal_those_of_transformers(spec: ImageSpec, size: tuple[int, int]) -> None:
    image = noise(*size)
    ours = prepare_image(decode_image(encoded(image)), spec)
    assert ours.dtype == np.uint8
    assert ours.shape == spec.shape
    np.testing.assert_array_equal(ours, oracle(image, spec))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "CMYK", "1", "P", "YCbCr"])
def test_every_mode_becomes_the_rgb_of_transformers(mode: str) -> None:
    image = noise(40, 30).convert(mode) if mode in {"1", "P"} else noise(40, 30, mode)
    kind = {"CMYK": "TIFF", "YCbCr": "TIFF"}.get(mode, "PNG")
    data = encoded(image, kind)
    ours = prepare_image(decode_image(data), CROPPED)
    np.testing.assert_array_equal(ours, oracle(Image.open(io.BytesIO(data)), CROPPED))


def test_transparent_palette_colour_shows_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0] + [0] * 765)
    assert decode_image(encoded(image, transparency=0)).getpixel((1, 1)) == (255, 255, 255)
    assert decode_image(encoded(image)).getpixel((1, 1)) == (255, 0, 0)


def test_sixteen_bit_grey_keeps_its_gradient() -> None:
    gradient = np.linspace(0, 65535, 256).astype(np.uint16).reshape(1, 256)
    pixels = np.asarray(decode_image(encoded(Image.fromarray(gradient))))
    np.testing.assert_array_equal(pixels[0, :, 0], gradient[0] >> 8)


def test_cmyk_jpeg_keeps_its_colours() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 40)).convert("CMYK")
    pixel = np.array(decode_image(encoded(red, "JPEG", quality=95)).getpixel((8, 8)))
    assert np.abs(pixel - (200, 30, 40)).max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    from PIL import ImageOps

    image = noise(20, 10)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    upright = decode_image(data)
    assert upright.size == ((10, 20) if orientation >= 5 else (20, 10))
    assert upright.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # Pillow warns about the file
def test_damaged_exif_does_not_refuse_the_picture() -> None:
    data = encoded(noise(20, 10), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert decode_image(data).size == (20, 10)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    data = encoded(
        frames[0], kind, save_all=True, append_images=frames[1:],
        **({"lossless": True} if kind == "WEBP" else {}),
    )  # fmt: skip
    assert decode_image(data).getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF"])
def test_truncated_file_is_unsupported(kind: str) -> None:
    data = encoded(noise(64, 64), kind)
    with pytest.raises(UnsupportedImage):
        decode_image(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg></svg>"])
def test_other_bytes_are_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedImage):
        decode_image(data)


def test_floating_point_pixels_are_unsupported() -> None:
    data = encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    with pytest.raises(UnsupportedImage, match="8 or 16 bits"):
        decode_image(data)


@pytest.mark.parametrize("size", [(20_000, 20_000), (10_000, 9_500), (16_385, 1), (8_000, 7_000)])
def test_size_is_refused_from_the_header(size: tuple[int, int]) -> None:
    with pytest.raises(PayloadTooLarge, match="at most 50000000 pixels"):
        decode_image(png_header(*size))


def test_limits_are_those_given() -> None:
    data = encoded(noise(20, 10))
    assert decode_image(data, ImageLimits(max_pixels=200, max_side=20)).size == (20, 10)
    with pytest.raises(PayloadTooLarge):
        decode_image(data, ImageLimits(max_pixels=199))
    with pytest.raises(PayloadTooLarge):
        decode_image(data, ImageLimits(max_side=19))


def test_thin_strip_does_not_grow_without_bound() -> None:
    strip = Image.new("RGB", (1, 16_000))
    large = CROPPED.model_copy(update={"size": (224, 224), "crop": (224, 224)})
    with pytest.raises(UnsupportedImage, match="aspect ratio"):
        prepare_image(strip, large)


SEEDS = [encoded(noise(9, 7), kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")]


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it repairs
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8),
)
def test_damaged_bytes_raise_only_our_errors(seed: bytes, damage: list[tuple[int, int]]) -> None:
    data = bytearray(seed)
    for place, value in damage:
        data[place % len(data)] = value
    try:
        image = decode_image(bytes(data), ImageLimits(max_pixels=10_000, max_side=1_000))
    except ServingError:
        return
    assert image.mode == "RGB"


@pytest.mark.parametrize(("mode", "largest"), [("I;16", 65535), ("I", 70000)])
def test_deep_grey_is_not_widened(mode: str, largest: int) -> None:
    deep = np.linspace(0, largest, 2_000_000).reshape(1000, 2000)
    image = Image.fromarray(deep.astype(np.uint16 if mode == "I;16" else np.int32))
    assert image.mode == mode
    with memory_below(8 * deep.size + 6_000_000):
        found = to_rgb(image)
    assert found.getpixel((1999, 999)) == (255, 255, 255)


def progressive(scans: int, thumbnail: bytes = b"") -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = encoded(noise(16, 16, "L"), "JPEG", progressive=True, exif=thumbnail)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - data.count(b"\xff\xda") + 1) + data[-2:]


def test_jpeg_of_many_scans_is_refused_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode_image(progressive(100)).size == (16, 16)
    data = progressive(101)
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", None)
    with pytest.raises(UnsupportedImage, match="more than 100 scans"):
        decode_image(data)


def test_bytes_that_look_like_scans_do_not_count() -> None:
    comment = b"\xff\xfe" + (6002).to_bytes(2, "big") + b"\xff\xda" * 3000
    data = encoded(noise(16, 16, "L"), "JPEG", progressive=True)
    assert not has_too_many_scans(data[:2] + comment + data[2:] + b"\xff\xda" * 500)
    assert has_too_many_scans(data[:2] + comment + progressive(101)[2:])
    assert not has_too_many_scans(b"\xff\xda" * 200 + b"\xff")


def test_transparent_image_is_composed_in_strips() -> None:
    image = noise(1200, 2500, "RGBA")
    composed = to_rgb(image)
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    assert composed.tobytes() == Image.alpha_composite(white, image).convert("RGB").tobytes()


def test_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    with pytest.raises(MemoryError):
        decode_image(encoded(noise(8, 8)))


WHITE = (255, 255, 255)
GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6


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


SPEC = plain_recipe((20, 20)).model_copy(update={"edges": (20, 33)})


def test_sizes_are_those_of_transformers() -> None:
    random = np.random.default_rng(0)
    sizes = [tuple(map(int, size)) for size in random.integers(1, 2000, (500, 2))]
    for width, height in [*sizes, (800, 800), (1333, 800), (799, 1333), (640, 480), (1, 4000)]:
        for edges in ((800, 1333), (20, 33), (7, 7)):
            wanted = get_size_with_aspect_ratio((height, width), *edges)
            assert size_by_edges((width, height), edges) == wanted


@pytest.mark.parametrize("divisor", [1, 7, 32])
def test_sizes_in_multiples_are_those_of_transformers(divisor: int) -> None:
    random = np.random.default_rng(0)
    sizes = [tuple(map(int, size)) for size in random.integers(1, 2000, (500, 2))]
    for width, height in [*sizes, (384, 384), (640, 480), (639, 384), (1, 4000)]:
        for shorter in (384, 50):
            edges = shorter, int(1333 / 800 * shorter)
            image = np.broadcast_to(0, (3, height, width))
            wanted = get_resize_output_image_size(image, *edges, divisor, "channels_first")
            assert size_by_edges((width, height), edges, divisor) == wanted


def assert_read_alike(size: tuple[int, int], processor: Any, spec: ImageSpec) -> None:
    picture = noise(*size)
    (wanted,) = processor(picture, return_tensors="np")["pixel_values"]
    found = read_image(encoded(picture), ImageLimits(), spec)
    assert found.size == size
    np.testing.assert_array_equal(found.pixels, wanted.transpose(1, 2, 0))


@pytest.mark.parametrize("size", [(64, 48), (90, 30), (30, 90), (48, 48)])
def test_pixels_in_multiples_are_those_of_transformers(size: tuple[int, int]) -> None:
    processor = ViltImageProcessorPil(
        size={"shortest_edge": 20}, size_divisor=8, do_rescale=False, do_normalize=False
    )
    spec = SPEC.model_copy(update={"multiple": 8, "resample": processor.resample})
    assert_read_alike(size, processor, spec)


@pytest.mark.parametrize("size", [(64, 48), (20, 31), (17, 90), (90, 17)])
def test_pixels_are_those_of_transformers(size: tuple[int, int]) -> None:
    processor = GroundingDinoImageProcessorPil(
        size={"shortest_edge": 20, "longest_edge": 33}, do_rescale=False, do_normalize=False
    )
    assert_read_alike(size, processor, SPEC)


def test_a_picture_that_would_have_no_pixels_is_refused() -> None:
    picture = Image.new("RGB", (1, 500))
    with pytest.raises(UnsupportedImage, match="aspect ratio"):
        read_image(encoded(picture), ImageLimits(), SPEC)


def _spec(height: int, width: int) -> ImageSpec:
    return plain_recipe((height, width), 1 / 255).model_copy(update={"resize": "padded"})


@pytest.mark.parametrize("model", [(44, 44), (48, 40)])
@pytest.mark.parametrize(
    "size", [(64, 48), (33, 91), (1, 5), (5, 1), (4, 4), (32, 32), (7, 200), (500, 333)]
)
def test_padded_image_pixels_equal_those_of_transformers(
    size: tuple[int, int], model: tuple[int, int]
) -> None:
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


def _box(brand: bytes) -> bytes:
    """How a file of ISO's base media format begins (ISO/IEC 14496-12, section 4.3)."""
    return b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0" + brand + b"mp41" + b"\0\0\0\x08free"


VIDEOS = [
    *((f"MP4 or MOV ({brand!r})", _box(brand)) for brand in (b"isom", b"mp42", b"qt  ", b"3gp5")),
    ("Matroska or WebM", b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04webm"),
    ("AVI", b"RIFF\n\xff\0\0AVI LIST" + bytes(16)),
]
NO_VIDEOS = [
    *((f"ftyp {brand!r}", _box(brand)) for brand in (b"heic", b"hevc", b"mif1", b"msf1")),
    *((f"ftyp {brand!r}", _box(brand)) for brand in (b"avci", b"jpeg", b"crx ", b"M4A ")),
    ("AVIF without a picture", _box(b"avif")),
    ("WAV", b"RIFF\x24\0\0\0WAVEfmt " + bytes(16)),
]


@pytest.mark.parametrize(("name", "data"), VIDEOS, ids=repr)
def test_a_video_is_refused_with_the_command_that_splits_it(name: str, data: bytes) -> None:
    kind = name.partition(" (")[0]
    command = "ffmpeg -i VIDEO -vf fps=1 frame-%03d.jpg"
    with pytest.raises(UnsupportedImage, match=rf"a video \({kind}\).*`{command}`"):
        decode_image(data)


@pytest.mark.parametrize(("name", "data"), NO_VIDEOS, ids=repr)
def test_what_begins_like_a_video_is_none(name: str, data: bytes) -> None:
    with pytest.raises(UnsupportedImage) as refused:
        decode_image(data)
    assert "video" not in str(refused.value)


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
        red = encoded(Image.new("RGB", size, RED), "PNG")
        add(f"{size[0]}x{size[1]}", red, Picture(size, RED, RED))
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
    for name, data in [*VIDEOS, *NO_VIDEOS]:
        add(name, data, DAMAGED)


for _part in (_formats, _modes, _sizes, _turned, _frames, _damaged, _others):
    _part()


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
