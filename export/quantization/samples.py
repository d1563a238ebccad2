"""A user's own inputs for calibration, as `--calibration` names them: texts, pairs, images.

A file has one text a line, a pair with a tab between its texts; lines of a `.jsonl` file have
`text`, or `first` and `second`. A folder has images, and perhaps such files, at any depth.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from inference.errors import SetupError

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
TEXTS = (".txt", ".tsv", ".jsonl")
MOST = 320
"""Texts that are used, and images; of more, as many at equal distances."""
LEAST = 10

Item = TypeVar("Item")


@dataclass(frozen=True)
class TextSample:
    """A text, or a pair of texts.

    Attributes:
        place: File name and line.
    """

    place: str
    text: str
    second: str | None = None


@dataclass(frozen=True)
class Samples:
    """What the named files and folders hold.

    Attributes:
        images: Paths of image files.
        names: Names of the files and folders, without the folders that they are in.
        found: Texts and images that were there, of which at most `MOST` of each are used.
    """

    texts: tuple[TextSample, ...]
    images: tuple[Path, ...]
    names: tuple[str, ...]
    found: int


def read_samples(paths: Sequence[Path]) -> Samples:
    """The texts and images of some files and folders.

    Raises:
        SetupError: a file is missing, empty, or neither text nor an image.
    """
    texts: list[TextSample] = []
    images: list[Path] = []
    for path in _files(paths):
        if path.suffix.lower() in IMAGES:
            images.append(path)
        else:
            texts += _texts(path)
    return Samples(
        tuple(_spread(texts)),
        tuple(_spread(images)),
        tuple(path.resolve().name for path in paths),
        len(texts) + len(images),
    )


def samples_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the files' contents, in the order in which they are read.

    Raises:
        SetupError: a file is missing, or a folder has none.
    """
    digest = hashlib.sha256()
    for path in _files(paths):
        digest.update(path.suffix.lower().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise SetupError(f"--calibration {path}: no such file or folder")
        if path.is_file():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGES + TEXTS)
        found = [file for file in found if file.is_file() and not file.name.startswith(".")]
        if not found:
            raise SetupError(
                f"--calibration {path}: the folder has no images ({' '.join(IMAGES)}) and no "
                f"texts ({' '.join(TEXTS)})"
            )
        yield from found


def _texts(path: Path) -> Iterator[TextSample]:
    """The texts of one file; lines that are blank are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise SetupError(
            f"--calibration {path}: neither text in UTF-8 nor an image ({' '.join(IMAGES)})"
        ) from None
    number = 0
    for number, line in enumerate(lines, start=1):
        place = f"{path.name}:{number}"
        if not line.strip():
            continue
        if path.suffix.lower() == ".jsonl":
            yield _from_json(line, place)
        else:
            text, tab, second = line.partition("\t")
            yield TextSample(place, text, second if tab else None)
    if not any(line.strip() for line in lines):
        raise SetupError(f"--calibration {path}: the file is empty: give one text a line")


def _from_json(line: str, place: str) -> TextSample:
    """One line of a `.jsonl` file."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise SetupError(f"--calibration {place}: not JSON ({error})") from None
    fields = fields if isinstance(fields, dict) else {}
    text, second = fields.get("text", fields.get("first")), fields.get("second")
    if not isinstance(text, str) or not isinstance(second, str | None):
        raise SetupError(
            f'--calibration {place}: expected {{"text": …}} or {{"first": …, "second": …}}'
        )
    return TextSample(place, text, second)


def _spread(items: Sequence[Item]) -> list[Item]:
    """At most `MOST` of the items, at equal distances."""
    count = min(len(items), MOST)
    return [items[index * len(items) // count] for index in range(count)]
