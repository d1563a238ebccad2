"""Regions that a detector found in a picture, from a `.npz` file.

Anderson et al. 2018, "Bottom-Up and Top-Down Attention" (arXiv 1707.07998): a vector for each box.
A file is a zip archive of arrays in numpy's format. Nothing of it is unpickled, and sizes are
checked in an array's header before its values are decompressed.
"""

from __future__ import annotations

import io
from math import prod
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import numpy.typing as npt
from numpy.lib import format as numpy_format

from inference.bundle.inputs import Regions
from inference.errors import PayloadTooLarge, ServingError, UnsupportedImage

Floats = npt.NDArray[np.float32]
npy: Any = numpy_format  # which has no types

_ZIP, _LISTED = b"PK\x03\x04", b"PK\x01\x02"
_MOST_ARRAYS = 1000
"""In a file: the list of millions would be read into memory."""
_HEADER_BYTES = 1024
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def is_archive(data: bytes) -> bool:
    """Whether a file begins as a zip archive, which `.npz` is."""
    return data.startswith(_ZIP)


def read_regions(data: bytes, regions: Regions) -> Floats:
    """(R, 1, F) of a file of regions, or (R, 1, F + 4) with their boxes behind the features.

    Raises:
        PayloadTooLarge: more regions than `regions.most`.
        UnsupportedImage: another kind of file, a damaged one, or arrays that are not as the model
            reads them.
    """
    if not is_archive(data):
        raise UnsupportedImage(f"not a file of regions: {_explain(regions)}")
    try:
        return _read(data, regions)
    except (ServingError, MemoryError):
        raise
    # For malformed bytes zipfile, zlib and numpy raise nearly anything.
    except Exception as error:
        reason = type(error).__name__
        raise UnsupportedImage(
            f"the file of regions is damaged or truncated ({reason}): {_explain(regions)}"
        ) from error


def count_pixels(data: bytes) -> int:
    """The pixels that would take as much memory as a file's arrays; 0 of one that is refused."""
    try:
        with _open(data) as archive:
            return sum(each.file_size for each in archive.infolist()) // 3  # bytes
    except Exception:  # whatever it is, reading the file raises it again, with its reason
        return 0


def _read(data: bytes, regions: Regions) -> Floats:
    with _open(data) as archive:
        features = _array(archive, "features", (None, regions.features), regions)
        if not np.isfinite(features).all():
            raise UnsupportedImage("features of regions must be finite float32 numbers")
        if regions.has_boxes:
            boxes = _array(archive, "boxes", (len(features), 4), regions)
            is_inside = (boxes >= 0).all() and (boxes <= 1).all()  # of NaN neither is true
            if not is_inside or (boxes[:, :2] > boxes[:, 2:]).any():
                raise UnsupportedImage(
                    "boxes of regions must be x1 <= x2 and y1 <= y2 from 0 to 1: divide them by "
                    "the picture's width and height"
                )
            features = np.concatenate([features, boxes], axis=1)
    return features[:, None]


def _open(data: bytes) -> ZipFile:
    if data.count(_LISTED) > _MOST_ARRAYS:
        raise UnsupportedImage(f"the file of regions has more than {_MOST_ARRAYS} arrays")
    return ZipFile(io.BytesIO(data))


def _array(archive: ZipFile, name: str, sizes: tuple[int | None, int], regions: Regions) -> Floats:
    """An array of that shape as float32; None: any number of regions."""
    file = f"{name}.npy"
    if file not in archive.namelist():
        raise UnsupportedImage(f"the file of regions has no array {name}: {_explain(regions)}")
    if archive.getinfo(file).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise UnsupportedImage("the file of regions must be written by numpy's savez")
    with archive.open(file) as member:
        start = io.BytesIO(member.read(_HEADER_BYTES))
        shape, is_fortran, dtype = _HEADERS[npy.read_magic(start)](start)
        if shape != (sizes[0] or (shape or (0,))[0], sizes[1]) or shape[0] < 1:
            raise UnsupportedImage(f"{name} of regions is {shape}: {_explain(regions)}")
        if shape[0] > regions.most:
            raise PayloadTooLarge(
                f"a picture of {shape[0]} regions: at most {regions.most} are read"
            )
        if dtype.kind != "f" or dtype.itemsize > 8:
            raise UnsupportedImage(f"{name} of regions is {dtype}, not float16, float32 or float64")
        size = prod(shape) * dtype.itemsize
        values = start.read() + member.read(size + 1)  # to the end, where the checksum is compared
    if len(values) != size:
        raise UnsupportedImage(f"{name} of regions is truncated or has more values than its shape")
    with np.errstate(over="ignore"):  # infinite values are refused
        found = np.frombuffer(values, dtype).astype(np.float32)
    return found.reshape(shape, order="F" if is_fortran else "C")


def _explain(regions: Regions) -> str:
    """What a model reads, for messages."""
    boxes = " and `boxes` (R, 4) as x1, y1, x2, y2 in parts of width and height"
    return (
        f"this model reads a .npz file with the floating-point array `features` "
        f"(R, {regions.features}) of a detector{boxes if regions.has_boxes else ''}, of 1 to "
        f"{regions.most} regions"
    )
