"""Paragraphs of OpenDocument: text mixed with spans (OpenDocument 1.3, part 3, chapter 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lxml import etree

from serving.documents.archive import MAX_CHILDREN, take_at_most
from serving.documents.paragraphs import Element, Group
from serving.documents.segment import Inline

_T = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_PARAGRAPHS = (f"{_T}p", f"{_T}h")
_CONTAINERS = {f"{_T}{name}" for name in ("span", "a", "meta")}
_BREAKS = {f"{_T}{name}" for name in ("tab", "line-break")}
_DROPPED = {f"{_T}soft-page-break"}
_SPACES = f"{_T}s"
_COUNT = f"{_T}c"
_MOST_SPACES = 50
_DIGITS = 9
_WHITE = re.compile(r"[ \t\r\n]+")


class Spans:
    """Reads and writes paragraphs with spans; implements `Vocabulary`."""

    def paragraphs(self, root: Element) -> Iterable[Element]:
        found: Iterable[Element] = root.iter(*_PARAGRAPHS)
        return found

    def groups(self, paragraph: Element) -> list[Group]:
        groups: list[list[Inline | str]] = [[]]
        for piece in _content(paragraph):
            if isinstance(piece, Inline) and piece.key.tag in _BREAKS:
                groups += [[piece], []]
            else:
                groups[-1].append(piece)
        return [Inline(None, tuple(group)) for group in groups if group]

    def replace(self, paragraph: Element, groups: Sequence[Group]) -> None:
        _fill(paragraph, [child for group in groups for child in group.children])


def _content(element: Element) -> Iterator[Inline | str]:
    if element.text:
        yield _WHITE.sub(" ", element.text)
    for child in take_at_most(element, MAX_CHILDREN):
        if child.tag in _CONTAINERS:
            yield Inline(child, tuple(_content(child)))
        elif child.tag == _SPACES:
            yield " " * _spaces(child.get(_COUNT, "1"))
        elif child.tag not in _DROPPED:
            yield Inline(child)
        if child.tail:
            yield _WHITE.sub(" ", child.tail)


def _spaces(count: str) -> int:
    """How many spaces a count stands for; Python refuses to read numbers of thousands of digits."""
    if not count.isdecimal():
        return 1
    return min(int(count), _MOST_SPACES) if len(count) <= _DIGITS else _MOST_SPACES


def _fill(parent: Element, children: Sequence[Inline | str]) -> None:
    """Give an element this content; containers are new, other elements are moved."""
    parent[:] = []
    parent.text = None
    for child in children:
        if isinstance(child, str):
            _add_text(parent, child)
            continue
        node = child.key
        if node.tag in _CONTAINERS:
            node = etree.SubElement(parent, node.tag, node.attrib, node.nsmap)
            _fill(node, child.children)
        else:
            node.tail = None
            parent.append(node)


def _add_text(parent: Element, text: str) -> None:
    """Add text; a second space in a row is an element of its own."""
    first, *further = re.split(r"(?<= )( +)", text)
    _append(parent, first)
    for spaces, rest in zip(further[::2], further[1::2], strict=True):
        etree.SubElement(parent, _SPACES, {_COUNT: str(len(spaces))})
        _append(parent, rest)


def _append(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
