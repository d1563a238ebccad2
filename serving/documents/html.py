"""HTML: the texts between blocks are segments, inline tags their markup."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from serving.documents.archive import take_at_most
from serving.documents.segment import MAX_DEPTH, MAX_ELEMENTS, Inline, too_much_markup

# HTML and XHTML as they are written: tags, comments and texts, each with its characters.
#
# Nothing is corrected or normalised, so that what is not text stays as it was. The time is linear:
# whatever has no end lasts as far as the end of the document.

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


INLINE = set(
    """
    a abbr acronym b bdi bdo big cite data del dfn em font i img ins label mark q rp rt ruby s small
    span strike strong sub sup tt u wbr
    """.split()
)
"""Elements within a sentence; all others end one."""
_OPAQUE_INLINE = {"code", "kbd", "samp", "var"}
_OPAQUE_BLOCK = {"audio", "canvas", "math", "object", "svg", "template", "video"}
_SPACE = re.compile(r"[ \t\r\n\f]+")


_LONG_REFERENCE = re.compile(r"&#[0-9]{4000,};?")
"""Of no character; Python refuses to read numbers of thousands of digits."""


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def _unescape(text: str) -> str:
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


@dataclass(frozen=True)
class Characters:
    """How text is written in a kind of markup."""

    read: Callable[[str], str] = _unescape
    write: Callable[[str], str] = _escape


class Html:
    """A document, or a part of one; implements `Document`.

    Args:
        characters: How its text is written.

    Raises:
        InvalidRequest: a paragraph has too much markup.
    """

    def __init__(
        self, source: str, characters: Characters = Characters(), encoding: str = "utf-8"
    ) -> None:
        self._characters, self._encoding = characters, encoding
        self._parts: list[str | Inline] = _Reader(characters).parts(source)
        self.segments = [part for part in self._parts if isinstance(part, Inline)]

    @property
    def lines(self) -> list[str]:
        """Of what is no segment, texts without letters alone: others may be code."""
        found = []
        for part in self._parts:
            if isinstance(part, Inline):
                found.append(part.text.strip())
                continue
            text = "" if part.startswith("<") else self._characters.read(part)
            if any(map(str.isdigit, text)) and not any(map(str.isalpha, text)):
                found.append(text.strip())
        return found

    def text(self, segments: Sequence[Inline]) -> str:
        """The document with other segments in the place of its own."""
        others = iter(segments)
        return "".join(
            part if isinstance(part, str) else self._render(next(others)) for part in self._parts
        )

    def write(self, segments: Sequence[Inline]) -> bytes:
        """The document, where what the encoding lacks is a numeric entity."""
        return self.text(segments).encode(self._encoding, "xmlcharrefreplace")

    def _render(self, element: Inline) -> str:
        inner = "".join(
            self._characters.write(child) if isinstance(child, str) else self._render(child)
            for child in element.children
        )
        opening, closing = element.key or ("", "")
        return f"{opening}{inner}{closing}"


@dataclass
class _OpenElement:
    """An inline element that is not closed yet, or the segment itself."""

    tag: Piece | None
    children: list[Inline | str] = field(default_factory=list)


class _Reader:
    """Gathers the pieces between two blocks, and makes segments of those that have words."""

    def __init__(self, characters: Characters) -> None:
        self._characters = characters
        self._found: list[str | Inline] = []
        self._between: list[Piece] = []
        self._opaque: list[Piece] = []
        """The open element that is not translated, and what it contains."""
        self._depth = 0
        self._is_verbatim = 0
        """Elements around, in which white space is kept."""

    def parts(self, source: str) -> list[str | Inline]:
        """Segments, and the text around them."""
        for piece in take_at_most(pieces(source)):
            if self._opaque:
                self._inside_opaque(piece)
            else:
                self._add(piece)
        self._between += self._opaque
        self._end_segment()
        return self._found

    def _add(self, piece: Piece) -> None:
        is_inline = piece.name in INLINE | _OPAQUE_INLINE
        if piece.kind == "open" and piece.name not in RAW and self._is_opaque(piece):
            if not is_inline:
                self._end_segment()
            self._opaque, self._depth = [piece], 1
        elif piece.kind == "text" or is_inline or piece.source.startswith("<!--"):
            self._between.append(piece)
        else:
            self._end_segment()
            if piece.name == "pre":
                self._is_verbatim += {"open": 1, "close": -1}.get(piece.kind, 0)
            self._found.append(piece.source)

    def _is_opaque(self, piece: Piece) -> bool:
        return piece.name in _OPAQUE_INLINE | _OPAQUE_BLOCK or not piece.is_translated

    def _inside_opaque(self, piece: Piece) -> None:
        self._opaque.append(piece)
        name = self._opaque[0].name
        self._depth += {"open": 1, "close": -1}.get(piece.kind, 0) if piece.name == name else 0
        if self._depth == 0:
            whole = Piece("other", "".join(each.source for each in self._opaque), name)
            self._opaque = []
            if name in INLINE | _OPAQUE_INLINE:
                self._between.append(whole)
            else:
                self._found.append(whole.source)

    def _end_segment(self) -> None:
        gathered, self._between = self._between, []
        text = "".join(piece.source for piece in gathered if piece.kind == "text")
        if not any(map(str.isalpha, self._characters.read(text))):
            self._found += [piece.source for piece in gathered]
            return
        keeps_space = self._is_verbatim > 0
        if sum(piece.kind in ("open", "empty", "other") for piece in gathered) > MAX_ELEMENTS:
            raise too_much_markup()
        self._found.append(Inline(None, tuple(_tree(gathered, self._characters, keeps_space))))


def _tree(
    gathered: Sequence[Piece], characters: Characters, keeps_space: bool
) -> list[Inline | str]:
    """Pieces as elements; a tag without its partner is markup without text."""
    stack = [_OpenElement(None)]
    for piece in gathered:
        if piece.kind == "text":
            text = characters.read(piece.source)
            stack[-1].children.append(text if keeps_space else _SPACE.sub(" ", text))
        elif piece.kind == "open":
            stack.append(_OpenElement(piece))
            if len(stack) > MAX_DEPTH:
                raise too_much_markup()
        elif piece.kind == "close" and any(one.tag and one.tag.name == piece.name for one in stack):
            while (tag := stack[-1].tag) and tag.name != piece.name:
                _refuse_unclosed(stack)
            closed = stack.pop()
            assert closed.tag is not None
            key = (closed.tag.source, piece.source)
            stack[-1].children.append(Inline(key, tuple(closed.children)))
        else:
            stack[-1].children.append(Inline((piece.source, "")))
    while len(stack) > 1:
        _refuse_unclosed(stack)
    return stack[0].children


def _refuse_unclosed(stack: list[_OpenElement]) -> None:
    unclosed = stack.pop()
    assert unclosed.tag is not None
    stack[-1].children += [Inline((unclosed.tag.source, "")), *unclosed.children]
