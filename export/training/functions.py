"""A trained folder as a function, for scores that import neither torch nor transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray
from PIL import Image

Translate = Callable[[list[str]], list[str]]
"""Sentences → translations."""

CaptionFunction = Callable[[list[Image.Image]], list[str]]
"""Pictures → captions."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A translation with the attention of each word.

    Attributes:
        text: The translation.
        attention: (words and marks at least, source words and marks at least); rows sum to one.
    """

    text: str
    attention: NDArray[Any]


Read = Callable[[list[str]], list[Reading]]
"""Sentences → translations with their attention."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_batches(
    compute: Callable[[list[Item]], list[Answer]], size: int = 50
) -> Callable[[list[Item]], list[Answer]]:
    """The function of any number of items that computes `size` of them at once."""

    def compute_all(items: list[Item]) -> list[Answer]:
        starts = range(0, len(items), size)
        return [answer for start in starts for answer in compute(items[start : start + size])]

    return compute_all
