"""Paragraphs of XML, read without entities, external files or a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from lxml import etree

from inference.errors import InvalidRequest
from serving.documents.archive import take_at_most
from serving.documents.segment import MAX_DEPTH, MAX_ELEMENTS, Inline, too_much_markup

Element: TypeAlias = etree._Element
ElementTree: TypeAlias = etree._ElementTree

_TYPED = "file has XML with a document type, which is not read"


def parse_xml(content: bytes) -> ElementTree:
    """A document as a tree.

    Raises:
        InvalidRequest: not well-formed, nested too deep, or with a document type, which these
            formats do not have: its entities could make a small file large.
    """
    if b"<!DOCTYPE" in content:
        raise InvalidRequest(_TYPED)
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_pis=False
    )
    try:
        tree = etree.ElementTree(etree.fromstring(content, parser))
    except (etree.XMLSyntaxError, ValueError):
        raise InvalidRequest("file is damaged: a part of it is not XML") from None
    if tree.docinfo.doctype:
        raise InvalidRequest(_TYPED)
    return tree


def write_xml(tree: ElementTree) -> bytes:
    """The document, in UTF-8."""
    content: bytes = etree.tostring(
        tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone
    )
    return content


Group: TypeAlias = Inline
"""Inline content as far as a break; a break is a group of its own."""


class Vocabulary(Protocol):
    """How an XML format writes paragraphs."""

    def paragraphs(self, root: Element) -> Iterable[Element]:
        """All paragraphs of a document, those within others included."""
        ...

    def groups(self, paragraph: Element) -> list[Group]:
        """The content of a paragraph; nothing is changed."""
        ...

    def replace(self, paragraph: Element, groups: Sequence[Group]) -> None:
        """Give a paragraph other content; elements without text are moved, not copied."""
        ...


class XmlPart:
    """An XML document with paragraphs; implements most of `Document`.

    Args:
        vocabulary: Of its format; it may keep state from one paragraph to the next.

    Raises:
        InvalidRequest: not XML that is read, or with too much markup in a paragraph.
    """

    def __init__(self, content: bytes, vocabulary: Vocabulary) -> None:
        self._tree: ElementTree = parse_xml(content)
        self._vocabulary = vocabulary
        found = vocabulary.paragraphs(self._tree.getroot())
        paragraphs = [(one, vocabulary.groups(one)) for one in take_at_most(found)]
        self._paragraphs = [
            (one, groups) for one, groups in paragraphs if any(group.has_words for group in groups)
        ]
        self._all = paragraphs
        self.segments = [
            group for _, groups in self._paragraphs for group in groups if group.has_words
        ]
        for segment in self.segments:
            _check_size(segment)

    def write(self, segments: Sequence[Inline]) -> bytes:
        others = iter(segments)
        for paragraph, groups in self._paragraphs:
            content = [next(others) if group.has_words else group for group in groups]
            self._vocabulary.replace(paragraph, content)
        return write_xml(self._tree)

    @property
    def lines(self) -> list[str]:
        """As of `Document`."""
        return [group.text for _, groups in self._all for group in groups if group.is_read]


def _check_size(segment: Inline) -> None:
    level, count = [segment], 0
    for _ in range(MAX_DEPTH):
        level = [each for one in level for each in one.children if isinstance(each, Inline)]
        count += len(level)
    if level or count > MAX_ELEMENTS:
        raise too_much_markup()
