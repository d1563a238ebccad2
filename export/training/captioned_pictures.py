"""A user's captions and pictures, decoded and resized once.

Three forms, by the file's suffix:

- `.txt` or `.tsv`: a line is a picture's file name, a tab and a caption;
- `.csv`: with a header; columns `file_name` and `text`, or `image` and `caption`;
- `.jsonl`: a line is an object with these keys.

File names are relative to the folder. A picture with several captions has several lines.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.training.translation import read_text
from inference.bundle.inputs import ImageSpec
from inference.errors import PayloadTooLarge, SetupError, UnsupportedImage
from inference.processing.image import decode_image, prepare_image

NAMES = tuple(f"captions{suffix}" for suffix in (".txt", ".tsv", ".csv", ".jsonl"))
"""Looked for in the folder where no file is given; and Hugging Face's names of the same forms."""
METADATA = ("metadata.csv", "metadata.jsonl")
_COLUMNS = (("file_name", "text"), ("image", "caption"))
_SHOWN = 5  # faults that a message lists


class Caption(NamedTuple):
    """One line.

    Attributes:
        line: Its number, from 1.
        picture: Path in the folder.
    """

    line: int
    picture: str
    text: str


def find_captions(folder: Path) -> Path:
    """The captions' file of a folder.

    Raises:
        SetupError: There is no folder, or none or several such files in it.
    """
    if not folder.is_dir():
        raise SetupError(f"{folder} is not a folder")
    found = [folder / name for name in (*NAMES, *METADATA) if (folder / name).is_file()]
    if len(found) != 1:
        what = "several of" if found else "none of"
        raise SetupError(
            f"{folder} has {what} {', '.join((*NAMES, *METADATA))}: give one with --captions"
        )
    return found[0]


def read_captions(file: Path) -> list[Caption]:
    """All captions, in the order of the file; blank lines are skipped.

    Raises:
        SetupError: The file is missing, empty, not UTF-8 or of another form; or lines of it are
            malformed or have no caption, with their numbers.
    """
    read = _FORMS.get(file.suffix.lower())
    if read is None:
        raise SetupError(f"{file} has another suffix than {', '.join(_FORMS)}")
    found = list(read(read_text(file), file))
    captions = [each for each in found if isinstance(each, Caption)]
    faults = [each for each in found if isinstance(each, str)]
    if faults:
        raise SetupError(f"{file}: {listed(faults)}")
    if not captions:
        raise SetupError(f"{file} has no captions")
    return captions


def listed(faults: list[str]) -> str:
    """The first faults, and how many there are."""
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + more


Found = Iterator[Caption | str]
"""Captions, and in place of a bad line what is wrong with it."""


def _read_tabs(text: str, _file: Path) -> Found:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            picture, tab, caption = line.partition("\t")
            yield _check_line(number, picture, caption if tab else None, "has no tab")


def _table(text: str, file: Path) -> Found:
    rows = _rows(text, file)
    _, header = next(rows, (1, []))
    names = _columns(dict.fromkeys(header))
    if names is None:
        raise SetupError(f"{file}: line 1 must have {_describe_expected('columns')}, not {header}")
    places = [header.index(name) for name in names]
    for number, row in rows:
        if any(row):
            cells = [row[at] if at < len(row) else None for at in places]
            is_long = len(row) > len(header)
            fault = f"has {len(row)} fields and the header {len(header)}"
            yield _check_line(number, cells[0], None if is_long else cells[1], fault)


def _rows(text: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its first line; a quoted cell may have several."""
    reader, number = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    try:
        for row in reader:
            yield number, [cell.strip() for cell in row]
            number = reader.line_num + 1
    except csv.Error as error:
        raise SetupError(f"{file}: line {number} is not CSV ({error})") from error


def _objects(text: str, _file: Path) -> Found:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            yield f"line {number} is not JSON ({error.msg})"
            continue
        names = _columns(value) if isinstance(value, dict) else None
        cells = [value[name] for name in names] if names else [None, None]
        picture, caption = cells if all(isinstance(cell, str) for cell in cells) else (None, None)
        yield _check_line(
            number, picture, caption, f"lacks {_describe_expected('keys')}, with texts"
        )


_FORMS: dict[str, Callable[[str, Path], Found]] = {
    ".txt": _read_tabs,
    ".tsv": _read_tabs,
    ".csv": _table,
    ".jsonl": _objects,
}


def _columns(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Names of picture and caption, of those that are there."""
    return next((names for names in _COLUMNS if all(name in found for name in names)), None)


def _describe_expected(what: str) -> str:
    return " or ".join(f"the {what} {picture} and {caption}" for picture, caption in _COLUMNS)


def _check_line(number: int, picture: str | None, caption: str | None, fault: str) -> Caption | str:
    """The caption of a line; or what is wrong with the line, `fault` where a part is missing."""
    if picture is None or caption is None:
        return f"line {number} {fault}"
    if not picture.strip():
        return f"line {number} names no picture"
    if not caption.strip():
        return f"line {number} has an empty caption"
    return Caption(number, picture.strip(), " ".join(caption.split()))


LEAST_PICTURES = 20


@dataclass(frozen=True)
class CaptionedPictures:
    """Pictures, and what is said about each.

    Attributes:
        names: Of the pictures, in the folder.
        pixels: (N, side, side, 3) uint8.
        captions: One or several of each picture.
    """

    names: list[str]
    pixels: NDArray[np.uint8]
    captions: list[list[str]]

    @property
    def fingerprint(self) -> str:
        """Of names, pixels and captions."""
        digest = sha256(repr((self.names, self.captions)).encode())
        digest.update(self.pixels.tobytes())
        return digest.hexdigest()

    def split(self, held_out: int, seed: int) -> tuple[CaptionedPictures, CaptionedPictures]:
        """Pictures to train on and held-out ones, drawn by the seed; at least one of each."""
        order = Random(seed).sample(range(len(self.names)), len(self.names))
        count = min(held_out, len(order) - 1)
        return self._chosen(order[count:]), self._chosen(order[:count])

    def _chosen(self, rows: list[int]) -> CaptionedPictures:
        return CaptionedPictures(
            [self.names[row] for row in rows],
            self.pixels[rows],
            [self.captions[row] for row in rows],
        )


def read_pictures(
    folder: Path,
    captions: Sequence[Caption],
    spec: ImageSpec,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CaptionedPictures:
    """The pictures that the captions name, in their order.

    Args:
        progress: Called with the number of pictures read, and of all.

    Raises:
        SetupError: Pictures are missing or cannot be decoded, with their names; or there are too
            few.
    """
    texts: dict[str, list[str]] = {}
    for each in captions:
        texts.setdefault(each.picture, []).append(each.text)
    _check(folder, captions, list(texts))
    pixels = np.empty((len(texts), *spec.size, 3), np.uint8)
    faults = []
    for row, name in enumerate(texts):
        try:
            pixels[row] = prepare_image(decode_image((folder / name).read_bytes()), spec)
        except (UnsupportedImage, PayloadTooLarge, OSError) as error:
            faults.append(f"{name}: {error}")
        progress(row + 1, len(texts))
    if faults:
        raise SetupError(f"{folder}: {len(faults)} pictures cannot be read: {listed(faults)}")
    return CaptionedPictures(list(texts), pixels, list(texts.values()))


def _check(folder: Path, captions: Sequence[Caption], names: list[str]) -> None:
    """Refuses missing pictures before any is decoded."""
    missing = [
        f"{each.picture} (line {each.line})"
        for each in captions
        if not (folder / each.picture).is_file()
    ]
    if missing:
        raise SetupError(f"{folder} lacks pictures that have captions: {listed(missing)}")
    if len(names) < LEAST_PICTURES:
        raise SetupError(
            f"{len(names)} pictures have captions; training needs at least {LEAST_PICTURES}"
        )
