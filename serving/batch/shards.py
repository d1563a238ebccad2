"""An input as shards: which rows are worked on, and written, together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from serving.batch.places import Place
from triptych.errors import InvalidArgument

InputFormat = Literal["parquet", "jsonl", "text", "images"]
_SUFFIXES: dict[str, InputFormat] = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".txt": "text", ".text": "text",
    **dict.fromkeys(
        (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif"),
        "images",
    ),
}  # fmt: skip
_SCAN_BYTES = 8 << 20
_LEAST_ROWS = 64
"""Of a shard, where a file has as many: two of them fill an engine of 64 rows."""
_LAST = 16
"""Part of the rows that are left which a shard has at most: a sixteenth."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputFile(_Frozen):
    """One file, as it was when the run began; it must not change until the run has ended."""

    path: str
    """Below the input's folder."""
    size: int
    modified_ns: int | None


class Shard(_Frozen):
    """Rows of one file, or a range of files with one row each."""

    number: int
    first_file: int
    last_file: int
    """Inclusive."""
    first_row: int
    """In the file."""
    rows: int
    offset: int = 0
    """Byte at which the first row begins, in files of lines."""
    size: int = 0
    """Bytes of all rows, in files of lines."""


class Input(_Frozen):
    """The files of an input.

    Attributes:
        uri: Of the file or folder, as it was given.
        format: Of all files.
        folder: Of the paths of the files.
    """

    uri: str
    format: InputFormat
    folder: str
    files: tuple[InputFile, ...]

    @classmethod
    def at(cls, uri: str, wanted: InputFormat | None = None) -> Input:
        """The files of a path or URI.

        Args:
            wanted: Of the files; others are passed over. None: as their suffixes say.

        Raises:
            InvalidArgument: there is no file, or there are files of several formats.
        """
        place = Place.of(uri)
        if not place.exists:
            raise InvalidArgument(f"--input: there is no {uri}")
        found = [place.info] if place.info.is_file else place.files()
        folder = str(PurePosixPath(place.path).parent) if place.info.is_file else place.path
        formats = {one.path: _SUFFIXES.get(PurePosixPath(one.path).suffix.lower()) for one in found}
        kinds = set(formats.values()) - {None}
        if wanted is None and len(kinds) != 1:
            raise InvalidArgument(
                f"--input: {uri} has files of {', '.join(sorted(map(str, kinds))) or 'no format'}: "
                f"give --input-format, one of {', '.join(get_args(InputFormat))}"
            )
        (kept,) = (wanted,) if wanted else (kind for kind in kinds if kind)
        start = len(folder.rstrip("/")) + 1
        files = tuple(
            InputFile(path=one.path[start:], size=one.size, modified_ns=one.mtime_ns)
            for one in found
            if formats[one.path] == kept or place.info.is_file
        )
        if not files:
            raise InvalidArgument(f"--input: {uri} has no files of {kept}")
        return cls(uri=uri, format=kept, folder=folder, files=files)

    def place(self, file: InputFile) -> Place:
        """Where a file is."""
        return Place(Place.of(self.uri).filesystem, f"{self.folder}/{file.path}")

    def shards(self, rows: int) -> tuple[Shard, ...]:
        """The shards of all files: of at most so many rows, and of fewer towards the end.

        Raises:
            InvalidArgument: a file cannot be read.
        """
        unit = rows // -(-rows // _LEAST_ROWS)
        if self.format == "images":
            places = enumerate(_sizes([len(self.files)], rows, unit))
            return tuple(
                Shard(
                    number=number, first_file=first, last_file=first + count - 1,
                    first_row=0, rows=count,
                )
                for number, (_, first, count) in places
            )  # fmt: skip
        counts, starts = [], []
        for file in self.files:
            try:
                count, bytes_ = _count(self.place(file), self.format, unit)
            except (OSError, pa.ArrowException) as error:
                raise InvalidArgument(f"--input: cannot read {file.path}: {error}") from None
            counts.append(count)
            starts.append(bytes_)
        found = []
        for number, (index, first, count) in enumerate(_sizes(counts, rows, unit)):
            place = {"first_file": index, "last_file": index, "first_row": first, "rows": count}
            if self.format != "parquet":
                offset = starts[index][first // unit]
                place |= {
                    "offset": offset,
                    "size": starts[index][-(-(first + count) // unit)] - offset,
                }
            found.append(Shard(number=number, **place))
        return tuple(found)


def _sizes(counts: Sequence[int], most: int, unit: int) -> Iterator[tuple[int, int, int]]:
    """Shards as (file, first row, rows), given the rows of each file.

    Towards the end a shard has a fixed part of the rows that are left, so that no worker has the
    last rows alone for long.
    """
    left = sum(counts)
    for file, count in enumerate(counts):
        first = 0
        while first < count:
            wanted = max(1, min(most // unit, left // _LAST // unit)) * unit
            rows = min(wanted, count - first)
            yield file, first, rows
            first, left = first + rows, left - rows


def _count(place: Place, format: InputFormat, unit: int) -> tuple[int, Sequence[int]]:
    """Rows of a file; of files of lines, bytes at which every `unit`-th begins, and the size."""
    if format == "parquet":
        import pyarrow.parquet as pq

        with place.filesystem.open_input_file(place.path) as file:
            return pq.ParquetFile(file).metadata.num_rows, ()
    starts, count, size = _line_starts(place, unit)
    return count, (*starts, size)


def _line_starts(place: Place, every: int) -> tuple[Sequence[int], int, int]:
    """Bytes at which every so-many-th line begins, the number of lines, and the size."""
    starts, lines, size, last = [], 0, 0, b"\n"
    with place.filesystem.open_input_stream(place.path) as file:
        while block := file.read(_SCAN_BYTES):
            if size == 0:
                starts.append(0)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            # The k-th line break ends line lines + k: a shard begins behind every `every`-th one.
            first = -lines % every or every
            starts += [size + int(end) + 1 for end in ends[first - 1 :: every]]
            lines, size, last = lines + len(ends), size + len(block), block[-1:]
    if last != b"\n":
        lines += 1
    return [start for start in starts if start < size], lines, size
