"""Documents as functions of bytes, so that other processes can run them.

A document is read twice, before and after its translation: what it was parsed to is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.errors import InvalidRequest
from serving.documents.archive import check_segments
from serving.documents.formats import read
from serving.documents.html import Html
from serving.documents.markup_transfer import links, transfer_markup
from serving.documents.segment import Inline
from triptych import documents

if TYPE_CHECKING:
    from triptych.tasks.translate import Alignment


@dataclass(frozen=True)
class Passage:
    """A text of a document.

    Attributes:
        text: To be translated.
        is_plain: Whether its markup needs no alignment.
    """

    text: str
    is_plain: bool


@dataclass(frozen=True)
class TranslatedPassage:
    """A passage in another language; with its alignment, if there is one."""

    text: str
    alignment: Alignment | None = None


def file_passages(name: str, content: bytes) -> list[Passage]:
    """The passages of a file.

    Raises:
        InvalidRequest: a format that is not read, or a damaged file.
        PayloadTooLarge: more than is read.
    """
    return [_passage(segment) for segment in read(name, content).segments]


def document_text(uri: str) -> str:
    """The paragraphs of a document, a line each.

    Args:
        uri: Its data URI.

    Raises:
        InvalidRequest: a format that is not read, or a damaged file.
        PayloadTooLarge: more than is read.
    """
    try:
        name, content = documents.decode(uri)
    except ValueError as error:
        raise InvalidRequest(f"the document cannot be read: {error}") from None
    return "\n".join(read(name, content).lines)


def translated_file(name: str, content: bytes, found: Sequence[TranslatedPassage]) -> bytes:
    """The file with its passages translated.

    Raises:
        InvalidRequest: a part of it is damaged.
    """
    document = read(name, content)
    return document.write(_translate_segments(document.segments, found))


def page_passages(texts: Sequence[str]) -> list[list[Passage]]:
    """The passages of each HTML text.

    Raises:
        InvalidRequest: too much markup.
        PayloadTooLarge: more than is read.
    """
    return [[_passage(segment) for segment in page.segments] for page in _pages(texts)]


def translated_pages(texts: Sequence[str], found: Sequence[TranslatedPassage] | None) -> list[str]:
    """The HTML texts with their passages translated; as they were, where there is no model."""
    others = None if found is None else iter(found)
    written = []
    for page in _pages(texts):
        own = page.segments
        if others is not None:
            own = _translate_segments(own, [next(others) for _ in own])
        written.append(page.text(own))
    return written


def _pages(texts: Sequence[str]) -> list[Html]:
    pages = []
    for text in texts:
        pages.append(Html(text))
        check_segments(sum(len(page.segments) for page in pages))
    return pages


def _passage(segment: Inline) -> Passage:
    return Passage(segment.text, segment.is_plain)


def _translate_segments(
    segments: Sequence[Inline], found: Sequence[TranslatedPassage]
) -> list[Inline]:
    return [_translate_segment(segment, one) for segment, one in zip(segments, found, strict=True)]


def _translate_segment(segment: Inline, found: TranslatedPassage) -> Inline:
    if segment.is_plain:
        return transfer_markup(segment, found.text, None)
    return transfer_markup(segment, found.text, links(segment.text, found.text, found.alignment))
