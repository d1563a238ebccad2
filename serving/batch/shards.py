"""An input as shards: which rows are worked on, and written, together."""

from __future__ import annotations

import itertools
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
        """The shards of all files, each of at most so many rows.

        Raises:
            InvalidArgument: a file cannot be read.
        """
        if self.format == "images":
            counts = range(0, len(self.files), rows)
            ends = [min(start + rows, len(self.files)) for start in counts]
            return tuple(
                Shard(number=n, first_file=a, last_file=b - 1, first_row=0, rows=b - a)
                for n, (a, b) in enumerate(zip(counts, ends, strict=True))
            )
        found: list[Shard] = []
        for index, file in enumerate(self.files):
            try:
                for part in _parts(self.place(file), self.format, rows):
                    place = {"first_file": index, "last_file": index}
                    found.append(Shard(number=len(found), **place, **part))
            except (OSError, pa.ArrowException) as error:
                raise InvalidArgument(f"--input: cannot read {file.path}: {error}") from None
        return tuple(found)


def _parts(place: Place, format: InputFormat, rows: int) -> Iterator[dict[str, int]]:
    """The shards of one file, as fields of `Shard`."""
    if format == "parquet":
        import pyarrow.parquet as pq

        with place.filesystem.open_input_file(place.path) as file:
            count = pq.ParquetFile(file).metadata.num_rows
        for start in range(0, count, rows):
            yield {"first_row": start, "rows": min(rows, count - start)}
        return
    starts, count, size = _line_starts(place, rows)
    for number, (start, end) in enumerate(itertools.pairwise((*starts, size))):
        first = number * rows
        yield {
            "first_row": first,
            "rows": min(rows, count - first),
            "offset": start,
            "size": end - start,
        }


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
