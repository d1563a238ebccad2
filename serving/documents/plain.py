"""Plain text and subtitles: lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.errors import InvalidRequest
from serving.documents.archive import take_at_most
from serving.documents.html import Characters, Html
from serving.documents.segment import Inline

_LINE = re.compile(r"[^\r\n]+|[\r\n]+")
_CUE = re.compile(
    r"^[ \t]*(?:\d+:)?\d+:\d+[,.]\d+[ \t]*-->[^\r\n]*\r?\n"
    r"(?P<body>(?:(?![ \t]*\r?$)[^\n]*(?:\n|\Z))*)",
    re.MULTILINE,
)
_TURN = re.compile(r"[ \t]*[-–—]")
_AS_WRITTEN = Characters(read=str, write=str)


def decode_text(content: bytes) -> tuple[str, str]:
    """A text and its encoding: UTF-8, or UTF-16 with a byte order mark.

    Raises:
        InvalidRequest: another one.
    """
    marks = (b"\xff\xfe", b"\xfe\xff")
    encoding = "utf-16" if content[:2] in marks else "utf-8"
    if content.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8-sig"
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError:
        raise InvalidRequest("file is not in UTF-8, nor in UTF-16 with a byte order mark") from None


class PlainText:
    """A text whose lines are segments; implements `Document`.

    Raises:
        InvalidRequest: an encoding that is not read.
    """

    def __init__(self, content: bytes) -> None:
        text, self._encoding = decode_text(content)
        self._parts = [Inline(None, (one.group(),)) for one in take_at_most(_LINE.finditer(text))]
        self.segments = [part for part in self._parts if part.has_words]

    def write(self, segments: Sequence[Inline]) -> bytes:
        others = iter(segments)
        return "".join(
            next(others).text if part.has_words else part.text for part in self._parts
        ).encode(self._encoding)

    @property
    def lines(self) -> list[str]:
        return [part.text for part in self._parts if part.is_read]


class Subtitles:
    """SubRip subtitles: the lines of a cue are one text, unless each is another speaker's.

    Implements `Document`.

    Raises:
        InvalidRequest: no subtitles, or an encoding that is not read.
    """

    def __init__(self, content: bytes) -> None:
        text, self._encoding = decode_text(content)
        self._parts: list[str | _Cue] = []
        place = 0
        for match in take_at_most(_CUE.finditer(text)):
            self._parts += [text[place : match.start("body")], *_cues(match["body"])]
            place = match.end()
        if place == 0:
            raise InvalidRequest("file has no subtitles: a cue begins with a time and -->")
        self._parts.append(text[place:])
        cues = (part for part in self._parts if isinstance(part, _Cue))
        self.segments = [segment for cue in cues for segment in cue.markup.segments]

    def write(self, segments: Sequence[Inline]) -> bytes:
        others = iter(segments)
        return "".join(
            part
            if isinstance(part, str)
            else part.text([next(others) for _ in part.markup.segments])
            for part in self._parts
        ).encode(self._encoding)

    @property
    def lines(self) -> list[str]:
        cues = (part for part in self._parts if isinstance(part, _Cue))
        return [line for cue in cues for line in cue.markup.lines]


class _Cue:
    """Lines that are one text; it is written with as many lines."""

    def __init__(self, lines: Sequence[str], end: str) -> None:
        self.markup = Html(" ".join(line.strip() for line in lines), _AS_WRITTEN)
        self._lines, self._end = lines, end

    def text(self, segments: Sequence[Inline]) -> str:
        """The cue with other segments."""
        if not segments:
            return self._break.join(self._lines) + self._end
        return self._break.join(_wrap(self.markup.text(segments), len(self._lines))) + self._end

    @property
    def _break(self) -> str:
        return "\r\n" if "\r" in self._end else "\n"


def _cues(body: str) -> list[_Cue]:
    stripped = body.rstrip("\r\n")
    end = body[len(stripped) :]
    lines = stripped.splitlines()
    if len(lines) > 1 and all(map(_TURN.match, lines)):
        newline = "\r\n" if "\r" in body else "\n"
        return [*(_Cue([line], newline) for line in lines[:-1]), _Cue(lines[-1:], end)]
    return [_Cue(lines, end)] if lines else []


def _wrap(text: str, count: int) -> list[str]:
    """The text in at most so many lines, of about the same length; tags are not broken."""
    words = re.findall(r"(?:<[^<>]*>|[^\s<]|<)+", text)
    size = len(text) / count
    lines: list[list[str]] = [[]]
    length = 0.0
    for word in words:
        if length + len(word) / 2 > size * len(lines) and len(lines) < count and lines[-1]:
            lines.append([])
        lines[-1].append(word)
        length += len(word) + 1
    return [" ".join(line) for line in lines]
