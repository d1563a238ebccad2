"""The formats of files, by the end of a file's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from inference.errors import InvalidRequest
from serving.documents.epub import Epub
from serving.documents.html import Html
from serving.documents.limits import check_segments
from serving.documents.office import opendocument, powerpoint, word
from serving.documents.plain import PlainText, Subtitles, decoded
from serving.documents.segment import Document

_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}["']?([\w-]{1,40})""", re.I)
_OLD = {"iso-8859-1", "iso-8859-2", "iso-8859-15", "latin1", "windows-1250", "windows-1252"}
"""Encodings of old pages that are read."""


def _html(content: bytes) -> Document:
    found = _CHARSET.search(content[:4096])
    name = found[1].decode().lower() if found else ""
    if name not in _OLD:
        text, name = decoded(content)
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
