"""A segment: a text that is translated as a whole, with the markup inside it as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inference.errors import InvalidRequest

MAX_DEPTH = 50
"""Elements within each other in one segment."""
MAX_ELEMENTS = 500
"""Elements of one segment."""


@dataclass(frozen=True)
class Inline:
    """Markup around a part of a text; without text, markup at a place in it.

    Attributes:
        key: What the format writes for it; None for a segment itself.
        children: Texts and elements, in order.
    """

    key: Any = None
    children: tuple[Inline | str, ...] = ()

    @property
    def text(self) -> str:
        """All text inside."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def has_words(self) -> bool:
        """Whether there is anything to translate."""
        return any(map(str.isalpha, self.text))

    @property
    def is_read(self) -> bool:
        """Whether it has words, or a number."""
        return any(map(str.isalnum, self.text))

    @property
    def is_plain(self) -> bool:
        """Whether its words need no placement: no element has fewer words than the whole."""
        elements = [child for child in self.children if isinstance(child, Inline)]
        if not elements:
            return True
        outside = any(child.strip() for child in self.children if isinstance(child, str))
        return len(elements) == 1 and not outside and elements[0].is_plain


class Document(Protocol):
    """A document that has been read."""

    @property
    def segments(self) -> Sequence[Inline]:
        """What there is to translate, each with words."""
        ...

    def write(self, segments: Sequence[Inline]) -> bytes:
        """The document with other segments in the place of its own."""
        ...

    @property
    def lines(self) -> Sequence[str]:
        """Texts of the segments, and of what has digits and no words between them."""
        ...


def too_much_markup() -> InvalidRequest:
    """The error of a segment whose markup would take long to place."""
    return InvalidRequest(
        f"a paragraph has more than {MAX_ELEMENTS} inline elements, or more than {MAX_DEPTH} "
        "within each other: remove markup from it"
    )
