"""Paragraphs of XML: groups of inline content between breaks, each a segment if it has words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from serving.documents.limits import limited
from serving.documents.segment import MAX_DEPTH, MAX_ELEMENTS, Inline, too_much_markup
from serving.documents.xml import Element, ElementTree, parsed, written

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
        self._tree: ElementTree = parsed(content)
        self._vocabulary = vocabulary
        found = vocabulary.paragraphs(self._tree.getroot())
        paragraphs = [(one, vocabulary.groups(one)) for one in limited(found)]
        self._paragraphs = [
            (one, groups) for one, groups in paragraphs if any(group.has_words for group in groups)
        ]
        self.segments = [
            group for _, groups in self._paragraphs for group in groups if group.has_words
        ]
        for segment in self.segments:
            _check_size(segment)

    def written(self, segments: Sequence[Inline]) -> bytes:
        """See `Document.written`."""
        others = iter(segments)
        for paragraph, groups in self._paragraphs:
            content = [next(others) if group.has_words else group for group in groups]
            self._vocabulary.replace(paragraph, content)
        return written(self._tree)


def _check_size(segment: Inline) -> None:
    level, count = [segment], 0
    for _ in range(MAX_DEPTH):
        level = [each for one in level for each in one.children if isinstance(each, Inline)]
        count += len(level)
    if level or count > MAX_ELEMENTS:
        raise too_much_markup()
