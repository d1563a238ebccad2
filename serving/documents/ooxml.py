"""Paragraphs of Word and PowerPoint: runs of text with one format each (ECMA-376, part 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from lxml import etree

from serving.documents.archive import MAX_CHILDREN, take_at_most
from serving.documents.paragraphs import Element, Group
from serving.documents.segment import Inline

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


@dataclass(frozen=True)
class Names:
    """Names of elements, with their namespaces."""

    paragraph: str
    run: str
    text: str
    format: str
    """Within a run."""
    first: frozenset[str] = frozenset()
    """Stay at the beginning of a paragraph."""
    last: frozenset[str] = frozenset()
    """Stay at its end."""
    containers: frozenset[str] = frozenset()
    """Have runs."""
    breaks: frozenset[str] = frozenset()
    """End a segment, in a run or beside runs."""
    dropped: frozenset[str] = frozenset()
    """Marks of a program, which mean nothing in another text."""
    field: str | None = None
    """Begins or ends a computed text, in a run."""
    field_kind: str = ""
    proofing: frozenset[str] = frozenset()
    """Within a format: about the text, not how it looks."""


def _names(namespace: str, words: str) -> frozenset[str]:
    return frozenset(namespace + word for word in words.split())


WORD = Names(
    paragraph=f"{_W}p",
    run=f"{_W}r",
    text=f"{_W}t",
    format=f"{_W}rPr",
    first=_names(_W, "pPr"),
    containers=_names(_W, "hyperlink ins moveTo smartTag"),
    breaks=_names(_W, "br cr tab ptab"),
    dropped=_names(_W, "proofErr lastRenderedPageBreak"),
    field=f"{_W}fldChar",
    field_kind=f"{_W}fldCharType",
    proofing=_names(_W, "lang noProof"),
)
POWERPOINT = Names(
    paragraph=f"{_A}p",
    run=f"{_A}r",
    text=f"{_A}t",
    format=f"{_A}rPr",
    first=_names(_A, "pPr"),
    last=_names(_A, "endParaRPr"),
    breaks=_names(_A, "br"),
)


@dataclass(frozen=True)
class Key:
    """What an element of a segment is written as.

    Attributes:
        kind: `run`: text of one format. `container`: around runs. `inside`: content of a run other
            than text. `beside`: what is between runs.
        element: The format of a run, or of the run around it; otherwise the element itself.
        content: What is inside the run.
    """

    kind: Literal["run", "container", "inside", "beside"]
    element: Element | None
    content: Element | None = None


class Runs:
    """Reads and writes paragraphs of runs; implements `Vocabulary`.

    Args:
        names: Of the format.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._fields = 0
        """Fields around the current run; a table of contents is one of many paragraphs."""

    def paragraphs(self, root: Element) -> Iterable[Element]:
        found: Iterable[Element] = root.iter(self._names.paragraph)
        return found

    def groups(self, paragraph: Element) -> list[Group]:
        fixed = self._names.first | self._names.last
        content = [child for child in paragraph if child.tag not in fixed]
        groups: list[list[Inline | str]] = [[]]
        for element in self._elements(content):
            if _is_break(element, self._names):
                groups += [[element], []]
            else:
                groups[-1].append(element)
        return [Inline(None, tuple(_merge_runs(group))) for group in groups if group]

    def replace(self, paragraph: Element, groups: Sequence[Group]) -> None:
        first = [child for child in paragraph if child.tag in self._names.first]
        last = [child for child in paragraph if child.tag in self._names.last]
        nodes = [node for group in groups for node in self._nodes(group.children)]
        paragraph[:] = [*first, *nodes, *last]

    def _elements(self, content: Iterable[Element]) -> Iterator[Inline]:
        for child in take_at_most(content, MAX_CHILDREN):
            if child.tag == self._names.run:
                yield from self._run(child)
            elif child.tag in self._names.containers and not self._fields:
                inside = _merge_runs(list(self._elements(child)))
                yield Inline(Key("container", child), tuple(inside))
            elif child.tag not in self._names.dropped:
                yield Inline(Key("beside", child))

    def _run(self, run: Element) -> Iterator[Inline]:
        """A run's texts and its other content; one of a field as a whole."""
        if self._names.field is not None:
            kinds = [mark.get(self._names.field_kind) for mark in run.iter(self._names.field)]
            is_field = self._fields > 0 or bool(kinds)
            self._fields = max(0, self._fields + kinds.count("begin") - kinds.count("end"))
            if is_field:
                yield Inline(Key("beside", run))
                return
        style = run.find(self._names.format)
        for child in run:
            if child.tag == self._names.text:
                yield Inline(Key("run", style), (child.text or "",))
            elif child.tag != self._names.format and child.tag not in self._names.dropped:
                yield Inline(Key("inside", style, child))

    def _nodes(self, children: Sequence[Inline | str]) -> list[Element]:
        """Elements of a paragraph; text between two runs is added to the first of them."""
        nodes: list[Element] = []
        before = ""
        for child in children:
            if isinstance(child, str):
                if nodes and self._is_text(nodes[-1]):
                    self._append(nodes[-1], child)
                else:
                    before += child
                continue
            key: Key = child.key
            if key.kind == "container":
                assert key.element is not None
                shell = etree.Element(key.element.tag, key.element.attrib, key.element.nsmap)
                shell[:] = self._nodes([before, *child.children] if before else child.children)
                nodes.append(shell)
                before = ""
            elif key.kind == "run":
                if child.text or before:
                    nodes.append(self._with_format(key, self._text(before + child.text)))
                before = ""
            elif key.kind == "inside":
                nodes.append(self._with_format(key, key.content))
            else:
                assert key.element is not None
                nodes.append(key.element)
        if before:
            nodes.append(self._with_format(Key("run", None), self._text(before)))
        return nodes

    def _with_format(self, key: Key, content: Element | None) -> Element:
        run = etree.Element(self._names.run)
        if key.element is not None:
            run.append(deepcopy(key.element))
        assert content is not None
        content.tail = None
        run.append(content)
        return run

    def _text(self, text: str) -> Element:
        element = etree.Element(self._names.text)
        element.text = text
        if self._names is WORD:
            element.set(_SPACE, "preserve")
        return element

    def _is_text(self, node: Element) -> bool:
        return bool(node.tag == self._names.run and node[-1].tag == self._names.text)

    def _append(self, run: Element, text: str) -> None:
        run[-1].text = (run[-1].text or "") + text


def _is_break(element: Inline, names: Names) -> bool:
    key: Key = element.key
    inner = key.content if key.kind == "inside" else key.element
    return key.kind in ("inside", "beside") and inner is not None and inner.tag in names.breaks


def _merge_runs(elements: Sequence[Inline | str]) -> list[Inline | str]:
    """Runs of one look as one, and white space as part of the run before it."""
    found: list[Inline | str] = []
    for element in elements:
        before = found[-1] if found else None
        if (
            isinstance(element, Inline)
            and isinstance(before, Inline)
            and element.key.kind == before.key.kind == "run"
            and (
                not element.text.strip()
                or not before.text.strip()
                or _look(before.key.element) == _look(element.key.element)
            )
        ):
            style = before.key if before.text.strip() or not element.text.strip() else element.key
            found[-1] = Inline(style, (before.text + element.text,))
        else:
            found.append(element)
    return found


def _look(style: Element | None) -> bytes:
    if style is None:
        return b""
    bare = deepcopy(style)
    for name in WORD.proofing:
        for child in bare.findall(name):
            bare.remove(child)
    for name in ("lang", "dirty", "err"):
        bare.attrib.pop(name, None)
    content: bytes = etree.tostring(bare, method="c14n")
    return b"" if not len(bare) and not bare.attrib else content
