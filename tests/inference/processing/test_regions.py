"""Files of a detector's regions: what is read of them, and that nothing else is."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest

from inference.bundle.inputs import ImageSpec, Regions
from inference.errors import PayloadTooLarge, UnsupportedImage
from inference.processing.image import ImageLimits, decode_image, pixel_count
from inference.processing.prepared_image import read_image
from tests.inference.tiny_models import plain_recipe
from tests.pictures import encoded, noise
from tests.traced_memory import memory_below

FEATURES = 6
RANDOM = np.random.default_rng(0)
VALUES = RANDOM.random((5, FEATURES)).astype(np.float32)
BOXES = np.tile(np.array([0.0, 0.25, 0.5, 1.0], np.float32), (5, 1))


def _spec(*, has_boxes: bool = True) -> ImageSpec:
    regions = Regions(features=FEATURES, has_boxes=has_boxes)
    fields = {"resize": "regions", "resample": 0, "regions": regions}
    return plain_recipe((36, 1)).model_copy(update=fields)


def _read(data: bytes, *, has_boxes: bool = True) -> Any:
    return read_image(data, ImageLimits(), _spec(has_boxes=has_boxes)).pixels


def saved(*, compressed: bool = False, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("is_fortran", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_features_and_boxes_become_one_array(
    dtype: str, is_fortran: bool, compressed: bool
) -> None:
    features = np.array(VALUES, dtype, order="F" if is_fortran else "C")
    ids = np.array(["a", {"b": 1}], object)  # as published files have them, and not unpickled
    data = saved(compressed=compressed, features=features, boxes=BOXES, image_id=ids)
    found = _read(data)
    assert (found.dtype, found.shape) == (np.float32, (5, 1, FEATURES + 4))
    np.testing.assert_array_equal(found[:, 0, :FEATURES], features.astype(np.float32))
    np.testing.assert_array_equal(found[:, 0, FEATURES:], BOXES)
    np.testing.assert_array_equal(_read(data, has_boxes=False), found[..., :FEATURES])


def _with(**changed: Any) -> bytes:
    return saved(**{"features": VALUES, "boxes": BOXES, **changed})


def _header(shape: str, version: int = 1, size: int | None = None) -> bytes:
    """A file whose `features` is a header without values."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
    length = (size or len(text)).to_bytes(2 * version, "little")
    return _members(**{"features.npy": b"\x93NUMPY" + bytes([version, 0]) + length + text})


def _members(kind: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _one(value: float) -> Any:
    changed = BOXES.copy()
    changed[3, 2] = value
    return changed


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a file of regions"),
    "a picture": (encoded(noise(9, 9)), r"reads a \.npz file .*features` \(R, 6\).*`boxes`"),
    "an empty archive": (_members(), "not a file of regions"),
    "no features": (saved(boxes=BOXES), "has no array features"),
    "no boxes": (saved(features=VALUES), "has no array boxes"),
    "objects": (_with(features=VALUES.astype(object)), "is object, not float16"),
    "whole numbers": (_with(features=VALUES.astype(int)), "is int64, not float16"),
    "long numbers": (_with(features=VALUES.astype(np.longdouble)), "is float128, not"),
    "NaN": (_with(features=np.full_like(VALUES, np.nan)), "must be finite"),
    "over float32": (_with(features=np.full(VALUES.shape, 1e300)), "must be finite"),
    "another width": (_with(features=VALUES[:, 1:]), r"features of regions is \(5, 5\)"),
    "one axis": (_with(features=VALUES[0]), r"features of regions is \(6,\)"),
    "no axis": (_with(features=np.float32(1)), r"features of regions is \(\)"),
    "no regions": (_with(features=VALUES[:0]), r"features of regions is \(0, 6\)"),
    "negative": (_header("(-1, 6)"), r"features of regions is \(-1, 6\)"),
    "other boxes": (_with(boxes=BOXES[1:]), r"boxes of regions is \(4, 4\)"),
    "boxes in pixels": (_with(boxes=BOXES * 640), "divide them by"),
    "boxes below 0": (_with(boxes=BOXES - 1), "divide them by"),
    "boxes of NaN": (_with(boxes=_one(np.nan)), "divide them by"),
    "turned boxes": (_with(boxes=BOXES[:, [2, 1, 0, 3]]), "x1 <= x2"),
    "no values": (_header("(9, 6)"), "truncated or has more values"),
    "a long header": (_header("(9, 6)", 2, 1 << 31), "damaged or truncated"),
    "no header": (_members(**{"features.npy": b"abc"}), "damaged or truncated"),
    "another compression": (
        _members(zipfile.ZIP_LZMA, **{"features.npy": b"abc"}),
        "written by numpy's savez",
    ),
    "many arrays": (_members(**{f"{n}": b"" for n in range(1001)}), "more than 1000 arrays"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_file_that_is_not_read_is_refused_with_its_reason(case: str) -> None:
    data, reason = REFUSED[case]
    with pytest.raises(UnsupportedImage, match=reason):
        _read(data)


def test_too_many_regions_are_refused() -> None:
    assert len(_read(saved(features=np.ones((1024, 6))), has_boxes=False)) == 1024
    with pytest.raises(PayloadTooLarge, match="1025 regions: at most 1024"):
        _read(saved(features=np.ones((1025, 6))), has_boxes=False)


def test_zeros_that_unpack_to_much_memory_are_refused_by_their_header() -> None:
    """300 MB: of the regions, and behind as many as the header says."""
    zeros = bytes(300_000_000)
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        start, {"descr": "<f4", "fortran_order": False, "shape": (5, FEATURES)}
    )
    whole = saved(compressed=True, features=np.frombuffer(zeros, np.float32).reshape(-1, FEATURES))
    behind = _members(zipfile.ZIP_DEFLATED, **{"features.npy": start.getvalue() + zeros})
    for data, error in ((whole, PayloadTooLarge), (behind, UnsupportedImage)):
        assert len(data) < 1_000_000
        with memory_below(10_000_000), pytest.raises(error):
            _read(data)


def test_damaged_file_is_read_or_refused() -> None:
    whole = saved(compressed=True, features=VALUES, boxes=BOXES)
    damaged = [whole[:end] for end in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(RANDOM.integers(8))
        damaged.append(bytes(flipped))
    refused = 0
    for data in damaged:
        try:
            assert _read(data).shape == (5, 1, FEATURES + 4)
        except (UnsupportedImage, PayloadTooLarge):
            refused += 1
    assert len(whole) < refused < len(damaged)


def test_regions_count_as_the_pixels_of_as_much_memory() -> None:
    """And a model that reads pictures says so of them."""
    data = saved(compressed=True, features=np.zeros((1000, 300), np.float32))
    assert 400_000 <= pixel_count(data, ImageLimits()) < 401_000
    assert pixel_count(data, ImageLimits(max_pixels=1000)) == 1000
    assert pixel_count(data[:-9], ImageLimits()) == 0
    with pytest.raises(UnsupportedImage, match=r"an archive .* this model reads images, JPEG"):
        decode_image(data)
