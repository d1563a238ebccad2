"""Limits of documents: what may be unpacked, read and translated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from inference.errors import PayloadTooLarge

T = TypeVar("T")

MAX_SEGMENTS = 10_000
"""Texts of one document."""
MAX_UNPACKED_BYTES = 100_000_000
"""All files of an archive together."""
MAX_XML_BYTES = 10_000_000
"""The files of an archive that are parsed; a parsed one takes several times its size."""
MAX_ENTRIES = 5_000
"""Files of an archive."""
MAX_PIECES = 200_000
"""Tags and texts of a page, paragraphs of a part, lines of a text: each takes memory when read."""
MAX_CHILDREN = 5_000
"""Elements of a paragraph."""


def limited(pieces: Iterable[T], most: int = MAX_PIECES) -> Iterator[T]:
    """The pieces, as long as there are not too many.

    Raises:
        PayloadTooLarge: there are.
    """
    for number, piece in enumerate(pieces):
        if number == most:
            raise PayloadTooLarge(
                f"the text has more than {most} tags, paragraphs or lines: divide it"
            )
        yield piece


def check_segments(count: int) -> None:
    """Raises PayloadTooLarge where there are more segments than one document may have."""
    if count > MAX_SEGMENTS:
        raise PayloadTooLarge(f"the text has more than {MAX_SEGMENTS} paragraphs: divide it")
