"""The formats of files, by the end of a file's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from inference.errors import InvalidRequest
from serving.documents.archive import Archive, check_segments
from serving.documents.epub import Epub
from serving.documents.html import Html
from serving.documents.ooxml import POWERPOINT, WORD, Runs
from serving.documents.opendocument import Spans
from serving.documents.paragraphs import Vocabulary, XmlPart
from serving.documents.plain import PlainText, Subtitles, decode_text
from serving.documents.segment import Document, Inline

_WORD_PARTS = r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml"
_POWERPOINT_PARTS = r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/(?:data|drawing))\d+\.xml"
_OPENDOCUMENT_PARTS = r"content\.xml|styles\.xml"


class Office:
    """A document of several parts; implements `Document`.

    Args:
        parts: Pattern of the names of parts with paragraphs.
        main: A part that each document of the format has.
        vocabulary: Makes how a part's paragraphs are written.

    Raises:
        InvalidRequest: not such a document, or a damaged one.
        PayloadTooLarge: more than is read.
    """

    def __init__(
        self, content: bytes, parts: str, main: str, vocabulary: Callable[[], Vocabulary]
    ) -> None:
        self._archive = Archive(content)
        if main not in self._archive.names:
            raise InvalidRequest("file is damaged, or of another kind than its name says")
        names = [name for name in self._archive.names if re.fullmatch(parts, name)]
        self._parts: dict[str, XmlPart] = {}
        for name in sorted(names):
            part = self._parts[name] = XmlPart(self._archive.read(name), vocabulary())
            check_segments(len(part.segments))
        self.segments = [segment for part in self._parts.values() for segment in part.segments]

    def write(self, segments: Sequence[Inline]) -> bytes:
        others = iter(segments)
        return self._archive.write(
            {
                name: part.write([next(others) for _ in part.segments])
                for name, part in self._parts.items()
                if part.segments
            }
        )

    @property
    def lines(self) -> list[str]:
        return [line for part in self._parts.values() for line in part.lines]


def word(content: bytes) -> Office:
    """A .docx: text, headers, footers, notes, comments and text boxes."""
    return Office(content, _WORD_PARTS, "word/document.xml", lambda: Runs(WORD))


def powerpoint(content: bytes) -> Office:
    """A .pptx: slides, tables, notes and diagrams."""
    return Office(content, _POWERPOINT_PARTS, "ppt/presentation.xml", lambda: Runs(POWERPOINT))


def opendocument(content: bytes) -> Office:
    """An .odt: text, tables, notes, headers and footers."""
    return Office(content, _OPENDOCUMENT_PARTS, "content.xml", Spans)


_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}["']?([\w-]{1,40})""", re.I)
_OLD = {"iso-8859-1", "iso-8859-2", "iso-8859-15", "latin1", "windows-1250", "windows-1252"}
"""Encodings of old pages that are read."""


def _html(content: bytes) -> Document:
    found = _CHARSET.search(content[:4096])
    name = found[1].decode().lower() if found else ""
    if name not in _OLD:
        text, name = decode_text(content)
    else:
        try:
            text = content.decode(name)
        except UnicodeDecodeError:
            raise InvalidRequest("file is not in the encoding that its charset says") from None
    return Html(text, encoding=name)


FORMATS: Mapping[str, Callable[[bytes], Document]] = {
    ".txt": PlainText,
    ".html": _html,
    ".htm": _html,
    ".srt": Subtitles,
    ".docx": word,
    ".pptx": powerpoint,
    ".odt": opendocument,
    ".epub": Epub,
}
"""End of a name, in lower case → reads such a file."""


def read(name: str, content: bytes) -> Document:
    """A file's document.

    Raises:
        InvalidRequest: a format that is not read, or a damaged file.
        PayloadTooLarge: more than is read.
    """
    reader = FORMATS.get(PurePosixPath(name).suffix.lower())
    if reader is None:
        known = ", ".join(FORMATS)
        raise InvalidRequest(f"file has a format that is not read; supported are: {known}")
    document = reader(content)
    check_segments(len(document.segments))
    return document
