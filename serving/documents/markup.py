"""HTML and XHTML as they are written: tags, comments and texts, each with its characters.

Nothing is corrected or normalised, so that what is not text stays as it was. The time is linear:
whatever has no end lasts as far as the end of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "open", "close", "empty", "other"]

_START = re.compile(r"<(?=/?[a-zA-Z]|[!?])")
"""Where markup begins; any other "<" is text."""
_TAG_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_TAG_END = re.compile(r"""(?:[^"'>]++|"[^"]*+"|'[^']*+')*+>""")
_OPAQUE = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", ">"), ("<!", ">"))
RAW = {"script", "style", "textarea", "xmp", "iframe", "noembed", "noframes"}
"""Elements whose content has no markup; none of it is text to translate."""
_VOID = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
    *("source", "track", "wbr"),
}
_NOT_TRANSLATED = re.compile(
    r"""\stranslate\s*+=\s*+["']?no\b|\sclass\s*+=\s*+(?:"[^"]*?\bnotranslate\b|'[^']*?\bnotranslate\b)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Piece:
    """A piece of markup as it is written."""

    kind: Kind
    source: str
    name: str = ""
    """Of a tag, in lower case."""

    @property
    def is_translated(self) -> bool:
        """Whether its attributes do not exclude it from translation."""
        return not _NOT_TRANSLATED.search(self.source)


def pieces(text: str) -> Iterator[Piece]:
    """The pieces of a document, in order; together they are the document."""
    place = 0
    while place < len(text):
        found = _START.search(text, place)
        start = found.start() if found else len(text)
        if start > place:
            yield Piece("text", text[place:start])
        if found is None:
            return
        piece = _markup(text, start)
        yield piece
        place = start + len(piece.source)
        if piece.kind == "open" and piece.name in RAW:
            end = re.compile(rf"</{re.escape(piece.name)}(?=[\s/>])", re.IGNORECASE)
            closing = end.search(text, place)
            stop = closing.start() if closing else len(text)
            if stop > place:
                yield Piece("other", text[place:stop])
            place = stop


def _markup(text: str, start: int) -> Piece:
    """What begins at a place that `_START` found."""
    for opening, closing in _OPAQUE:
        if text.startswith(opening, start):
            place = text.find(closing, start + len(opening))
            stop = place + len(closing) if place >= 0 else len(text)
            return Piece("other", text[start:stop])
    named = _TAG_NAME.match(text, start)
    assert named is not None
    end = _TAG_END.match(text, named.end())
    if end is None:
        return Piece("other", text[start:])
    source, name = text[start : end.end()], named[1].lower()
    if source.startswith("</"):
        return Piece("close", source, name)
    is_empty = name in _VOID or source.endswith("/>")
    return Piece("empty" if is_empty else "open", source, name)
