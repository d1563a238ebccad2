"""A user's captioned pictures, decoded and resized once, as the served model will see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from export.training.caption_file import Caption, listed
from inference.bundle.inputs import ImageSpec
from inference.errors import PayloadTooLarge, SetupError, UnsupportedImage
from inference.processing.image import decode_image, prepare_image

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
    """Before any picture is decoded."""
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
