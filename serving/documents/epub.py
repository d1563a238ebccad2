"""EPUB: the XHTML pages of a book, its tables of contents and its title."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from urllib.parse import unquote

from inference.errors import InvalidRequest
from serving.documents.archive import Archive, check_segments
from serving.documents.html import Characters, Html
from serving.documents.paragraphs import Element, parse_xml
from serving.documents.plain import decode_text
from serving.documents.segment import Inline

_CONTAINER = "META-INF/container.xml"
_ROOT = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_ITEM = "{http://www.idpf.org/2007/opf}item"
_PAGES = {"application/xhtml+xml", "application/x-dtbncx+xml"}
_TITLE = re.compile(r"(?<=>)[^<>]+(?=</dc:title\s*>)")


def _escape(text: str) -> str:
    """XHTML has no named entity for a space."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_XHTML = Characters(write=_escape)


class Epub:
    """A book; implements `Document`.

    Raises:
        InvalidRequest: not a book, or a damaged one.
        PayloadTooLarge: more than is read.
    """

    def __init__(self, content: bytes) -> None:
        self._archive = Archive(content)
        root = parse_xml(self._archive.read(_CONTAINER)).getroot()
        package = next((one.get("full-path", "") for one in root.iter(_ROOT)), "")
        listing = self._archive.read(package)
        folder = posixpath.dirname(package)
        items: list[Element] = list(parse_xml(listing).getroot().iter(_ITEM))
        self._package = package
        self._listing, self._encoding = decode_text(listing)
        title = _TITLE.search(self._listing)
        self._title = Html(title.group(), _XHTML) if title else Html("")
        self._pages: dict[str, tuple[Html, str]] = {}
        for item in items:
            name = posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
            if item.get("media-type") in _PAGES and name not in self._pages:
                text, encoding = decode_text(self._archive.read(name))
                self._pages[name] = Html(text, _XHTML), encoding
                check_segments(sum(len(page.segments) for page, _ in self._pages.values()))
        if not self._pages:
            raise InvalidRequest("file has no pages of text")
        self._texts = [self._title, *(page for page, _ in self._pages.values())]
        self.segments = [segment for text in self._texts for segment in text.segments]

    @property
    def lines(self) -> list[str]:
        return [line for text in self._texts for line in text.lines]

    def write(self, segments: Sequence[Inline]) -> bytes:
        others = iter(segments)

        def render(text: Html) -> str:
            return text.text([next(others) for _ in text.segments])

        title = render(self._title)
        listing = _TITLE.sub(lambda _: title, self._listing, count=1) if title else self._listing
        replaced = {self._package: listing.encode(self._encoding)}
        for name, (page, encoding) in self._pages.items():
            replaced[name] = render(page).encode(encoding)
        return self._archive.write(replaced)
