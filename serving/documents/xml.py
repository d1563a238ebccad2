"""XML, read without entities, external files or a network, and written with its declaration."""

from __future__ import annotations

from typing import TypeAlias

from lxml import etree

from inference.errors import InvalidRequest

Element: TypeAlias = etree._Element
ElementTree: TypeAlias = etree._ElementTree

_TYPED = "file has XML with a document type, which is not read"


def parsed(content: bytes) -> ElementTree:
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


def written(tree: ElementTree) -> bytes:
    """The document, in UTF-8."""
    content: bytes = etree.tostring(
        tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone
    )
    return content
