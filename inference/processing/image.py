"""Image files to the uint8 array that a model's graph takes.

The pixels equal those of `transformers`' Pillow image processors (of open_clip's transformations,
for its checkpoints) before rescaling and normalising, which the graph does. The size is checked in
the header, before the image is decoded.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from inference.bundle.inputs import ImageSpec
from inference.errors import PayloadTooLarge, ServingError, UnsupportedImage
from inference.processing.flattened_patches import flatten
from inference.processing.padded_image import pad_and_resize
from inference.processing.regions import count_pixels, is_archive

Pixels = npt.NDArray[np.uint8 | np.float32]
"""As `ImageSpec.dtype` says."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Accepted formats. Some of Pillow's other plugins start programs or read further files."""

PILLOW_MAX_PIXELS = 89_478_485
"""Pillow warns above this limit of its own; ours must not be larger."""
_JPEG = ("JPEG", "MPO")
_VIDEOS = {
    "MP4 or MOV": rb"....ftyp(?!avi[fs]|avc[is]|hei|hev|mi[af]|msf|jpe?g|crx|M4[AB])",
    "Matroska or WebM": rb"\x1a\x45\xdf\xa3",
    "AVI": rb"RIFF....AVI ",
}
"""How videos begin; `ftyp` begins HEIF, AVIF, Canon's CR3 and audio, too."""
_PNG_DEPTH = 24
"""Place of the bits a sample, in the header that a PNG file begins with."""
_STRIP_PIXELS = 1_000_000
"""Composed over white at once: a whole image would be held four times."""


@dataclass(frozen=True)
class ImageLimits:
    """Maximum size of an image, checked in its header."""

    max_pixels: int = 50_000_000
    max_side: int = 16_384


def decode_image(data: bytes, limits: ImageLimits | None = None) -> Image.Image:
    """An upright RGB image: EXIF orientation applied, composed over white, first frame only.

    Raises:
        PayloadTooLarge: more pixels or a longer side than `limits`, judged by the header alone.
        UnsupportedImage: another format than `FORMATS`, a damaged or truncated file, or one with
            too many scans.
        MemoryError: decoding it takes more than the process may have.
    """
    limits = limits or ImageLimits()
    if not data:
        raise UnsupportedImage("the image is empty: send the bytes of an image file")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.size, limits)
        if image.format in _JPEG and has_too_many_scans(data):
            raise UnsupportedImage(f"the image has more than {MAX_SCANS} scans: save it again")
        image.load()
        return to_rgb(_upright(_with_file_transparency(image, data)))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("more than Pillow opens", limits) from None
    except UnidentifiedImageError:
        raise UnsupportedImage(_explain_refusal(data)) from None
    except (ServingError, MemoryError):
        raise
    # For malformed bytes Pillow's plugins raise nearly anything (struct.error, SyntaxError, …).
    except Exception as error:
        reason = type(error).__name__
        raise UnsupportedImage(f"the image is damaged or truncated ({reason})") from error


def pixel_count(data: bytes, limits: ImageLimits) -> int:
    """Pixels of an image by its header; 0 of one that `decode_image` refuses by it.

    Of a file of regions, those that would take as much memory.
    """
    if is_archive(data):
        return min(count_pixels(data), limits.max_pixels)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.size, limits)
    except Exception:  # whatever it is, decoding the image raises it again, with its reason
        return 0
    return image.width * image.height


def prepare_image(image: Image.Image, spec: ImageSpec) -> Pixels:
    """An RGB image as (height, width, 3), resized and cropped by the model's recipe.

    Raises:
        UnsupportedImage: resized with its aspect ratio kept, the image would be too large or have
            no pixels; or nothing is left of it to be resized.
    """
    if spec.centre is not None:
        image = _centre(image, spec.centre)
    if spec.resize == "fit":
        return _fit(image, spec)
    if spec.resize == "padded":
        return pad_and_resize(image, spec.size)
    if spec.patches is not None:
        return flatten(image, spec.patches, spec.size[0], spec.resample)
    size = spec.size if spec.resize == "exact" else _to_edge(image.size, spec.size[0])
    pixels: Pixels = np.asarray(resized(image, size, spec.resample), dtype=np.uint8)
    if spec.crop:
        pixels = centre_crop(pixels, spec.crop, spec.crop_start)
    return np.ascontiguousarray(pixels)


def grey_png(values: npt.NDArray[np.float64]) -> bytes:
    """(height, width) from 0 to 1 as a PNG with 256 levels of grey."""
    png = io.BytesIO()
    Image.fromarray(np.rint(values * 255).astype(np.uint8)).save(png, "PNG")
    return png.getvalue()


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode of Pillow as RGB; 16-bit grey keeps its upper byte.

    Raises:
        UnsupportedImage: floating-point pixels, whose range is not defined.
    """
    if image.mode == "F":
        raise UnsupportedImage("floating-point pixels have no defined range: send 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        upper = values >> 8  # of 16 or 32 bits: copied once, a large image has 200 MB
        if (transparent := image.info.get("transparency")) is not None:
            upper[values == transparent] = 255
        return Image.fromarray(np.clip(upper, 0, 255, out=upper).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        return _over_white(image)
    return image.convert("RGB")


def centre_crop(
    pixels: Pixels, size: tuple[int, int], start: Literal["down", "nearest_even"] = "down"
) -> Pixels:
    """The centre (height, width) of an image, padded with black where it is smaller.

    Args:
        start: How half of an odd margin is rounded.
    """
    for axis, wanted in enumerate(size):
        have = pixels.shape[axis]
        if have < wanted:
            before = ceil((wanted - have) / 2)
            padding = [(0, 0)] * pixels.ndim
            padding[axis] = (before, wanted - have - before)
            pixels = np.pad(pixels, padding)
        else:
            margin = have - wanted
            first = round(margin / 2) if start == "nearest_even" else margin // 2
            pixels = pixels[(slice(None),) * axis + (slice(first, first + wanted),)]
    return pixels


def _over_white(image: Image.Image) -> Image.Image:
    """A transparent image as RGB, composed strip by strip."""
    whole = Image.new("RGB", image.size)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        strip = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return whole


def _centre(image: Image.Image, parts: tuple[float, float]) -> Image.Image:
    """The centre of an image, in parts of its shorter edge; padded with black where it is larger.

    Raises:
        UnsupportedImage: it has no pixels.
    """
    edge = min(image.size)
    size = int(parts[0] * edge), int(parts[1] * edge)
    if 0 in size:
        raise UnsupportedImage(f"{image.width}x{image.height} is too small: send a larger image")
    return Image.fromarray(centre_crop(np.asarray(image, dtype=np.uint8), size))


def _fit(image: Image.Image, spec: ImageSpec) -> Pixels:
    """An image whose longer edge fits, in the centre of black pixels.

    Raises:
        UnsupportedImage: too extreme an aspect ratio.
    """
    height, width = spec.size
    if spec.is_turned and (width - height) * (image.width - image.height) < 0:
        image = image.transpose(Image.Transpose.ROTATE_270)  # counted against the clock
    image = resized(image, _to_edge(image.size, min(spec.size)), spec.resample)
    inside = _inside(image.size, spec.size)
    if inside != (image.height, image.width):
        # 0, the nearest pixel, counts as no choice in `transformers`
        image = resized(image, inside, spec.resample or Image.Resampling.BICUBIC)
    pixels = np.zeros(spec.shape, dtype=np.uint8)
    top, left = (height - image.height) // 2, (width - image.width) // 2
    pixels[top : top + image.height, left : left + image.width] = np.asarray(image, np.uint8)
    return pixels


def _inside(size: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image of (width, height) that is shrunk to at most (height, width)."""
    width, height = size
    inner_height, inner_width = min(height, most[0]), min(width, most[1])
    if (inner_height, inner_width) == (height, width):
        return height, width
    if height > width:
        inner_width = int(width * inner_height / height)
    elif width > height:
        inner_height = int(height * inner_width / width)
    return inner_height, inner_width


def resized(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """An image of (height, width).

    Raises:
        UnsupportedImage: no pixels, or too many.
    """
    height, width = size
    if not 0 < height * width <= PILLOW_MAX_PIXELS:
        sides = f"{image.width}x{image.height}"
        raise UnsupportedImage(f"{sides} has too extreme an aspect ratio for this model: crop it")
    return image.resize((width, height), resample=Image.Resampling(resample))


def _to_edge(size: tuple[int, int], edge: int) -> tuple[int, int]:
    """(height, width) of an image of (width, height) whose shorter edge is resized."""
    width, height = size
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels or max(size) > limits.max_side:
        raise _too_large(f"{width}x{height}", limits)


def _explain_refusal(data: bytes) -> str:
    """Why a file is refused: it is a video, with the command that splits it, or no image."""
    for kind, beginning in _VIDEOS.items():
        if re.match(beginning, data, re.DOTALL):
            return (
                f"a video ({kind}), not an image: split it with `ffmpeg -i VIDEO -vf fps=1 "
                "frame-%03d.jpg` and send the frames as images"
            )
    if is_archive(data):
        return f"an archive (.npz or .zip): this model reads images, {', '.join(FORMATS)}"
    return f"not an image of these formats: {', '.join(FORMATS)}"


def _too_large(what: str, limits: ImageLimits) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the image has too many pixels ({what}): at most {limits.max_pixels} pixels and "
        f"{limits.max_side} a side, send a smaller one"
    )


def _with_file_transparency(image: Image.Image, data: bytes) -> Image.Image:
    """A PNG image whose transparent colour is that of the file (PNG specification, section 11.3.2).

    The colour has the file's depth. Pillow widens samples of 2 and 4 bits and cuts those of 16 bits
    of colours, and compares them with the colour as it is written.

    Args:
        image: As Pillow loads the file.
        data: The file.
    """
    transparent = image.info.get("transparency")
    if image.format != "PNG" or transparent is None:
        return image
    depth = data[_PNG_DEPTH]
    if image.mode == "L" and depth < 8:
        image.info["transparency"] = transparent * (255 // (2**depth - 1))
    elif image.mode == "RGB" and depth == 16:
        lower = Image.open(io.BytesIO(data), formats=["PNG"])
        # The upper bytes of samples that are read in the other order are the lower ones.
        lower.tile = [tile._replace(args="RGB;16L") for tile in lower.tile]
        is_shown = np.zeros((image.height, image.width), dtype=bool)
        for channel, value in enumerate(transparent):
            is_shown |= np.asarray(image.getchannel(channel)) != value >> 8
            is_shown |= np.asarray(lower.getchannel(channel)) != value & 255
        del image.info["transparency"]
        image.putalpha(Image.fromarray(is_shown.astype(np.uint8) * 255))
    return image


def _upright(image: Image.Image) -> Image.Image:
    """The image rotated as in its EXIF data; unreadable EXIF data is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data raises nearly anything, too
        return image


MAX_SCANS = 100
"""Encoders write 10, those that search for the smallest file up to twice as many."""
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_ALONE = {0x01, _START, *range(0xD0, 0xD8)}
"""Markers without a length behind them."""


def has_too_many_scans(data: bytes) -> bool:
    """Whether a JPEG file has more than `MAX_SCANS` scans.

    Markers are found as libjpeg finds them: what is between a segment and the next marker is
    skipped, and what a segment holds (a thumbnail, say) is none.
    """
    if data.count(b"\xff\xda") <= MAX_SCANS:
        return False
    scans, place = 0, 0
    while found := _MARKER.search(data, place):
        kind, place = data[found.end() - 1], found.end()
        if kind == _END:
            return False
        if kind in _ALONE:
            continue
        scans += kind == _SCAN
        if scans > MAX_SCANS:
            return True
        place += max(2, int.from_bytes(data[place : place + 2], "big"))
    return False
