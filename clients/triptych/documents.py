"""Documents in the place of texts, as data URIs (RFC 2397): `data:TYPE;base64,CONTENT`."""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path

from triptych.errors import InvalidArgument

_OPEN_XML = "application/vnd.openxmlformats-officedocument"
TYPES = {
    ".html": "text/html",
    ".srt": "application/x-subrip",
    ".docx": f"{_OPEN_XML}.wordprocessingml.document",
    ".pptx": f"{_OPEN_XML}.presentationml.presentation",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".epub": "application/epub+zip",
}
"""End of a file's name → media type."""
_SUFFIXES = {kind: suffix for suffix, kind in TYPES.items()}
_HEAD = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,")


def encode(path: str | os.PathLike[str]) -> str:
    """A file as a text of a request, whose fields say where they take documents.

    Raises:
        InvalidArgument: It has another format, or cannot be read.
    """
    file = Path(path)
    kind = TYPES.get(file.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{file} is no document that is read: {', '.join(TYPES)} are")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from error
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def is_document(text: str) -> bool:
    """Whether a text is a data URI."""
    return _HEAD.match(text) is not None


def decode(uri: str) -> tuple[str, bytes]:
    """(name of a file with that end, content).

    Raises:
        ValueError: A type that is not read, or no base64.
    """
    head = _HEAD.match(uri)
    suffix = _SUFFIXES.get(head[1].lower()) if head else None
    if head is None or suffix is None:
        raise ValueError(f"it has a type that is not read; supported are: {', '.join(_SUFFIXES)}")
    try:
        return f"file{suffix}", base64.b64decode(uri[head.end() :], validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None
