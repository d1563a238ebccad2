"""A trained folder as a function, for scores that import neither torch nor transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
