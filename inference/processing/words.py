"""Edges of words: in texts, and in the tokens of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inference.processing.tokenizer import Tokenizer

_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x9FFF),  # Chinese and Japanese
    (0xAC00, 0xD7AF),  # Korean: particles follow a word without a space
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_PART = "\ufffd"  # a token that is no whole character


def is_word_character(character: str) -> bool:
    """Whether a word may go on with it: letters and digits of scripts that separate words."""
    if character.isalnum() or character in ("_", _PART):
        code = ord(character)
        return not any(first <= code <= last for first, last in _WITHOUT_SPACES)
    return False


def joins(text: str, place: int) -> bool:
    """Whether a word goes on over that place of a text."""
    if not 0 < place < len(text):
        return False
    return is_word_character(text[place - 1]) and is_word_character(text[place])


def word_edges(text: str) -> list[bool]:
    """For each place of a text, and that behind its end, whether no word goes on over it."""
    known = {character: is_word_character(character) for character in set(text)}
    inside = [known[character] for character in text]
    return [True, *(not (a and b) for a, b in pairwise(inside)), True] if text else [True]


@dataclass(frozen=True, eq=False)
class WordEdges:
    """Which tokens of a vocabulary are inside words at their edges.

    Attributes:
        begins: (V,) whether a token begins with a letter or digit, without a space before it.
        ends: (V,) whether it ends with one.
    """

    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    @classmethod
    def none(cls, vocabulary_size: int) -> WordEdges:
        """Every token is a word of its own."""
        nowhere = np.zeros(vocabulary_size, np.bool_)
        return cls(nowhere, nowhere)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocabulary_size: int) -> WordEdges:
        """Those of a model's output vocabulary."""
        pieces = tokenizer.pieces(range(vocabulary_size))
        begins = [bool(piece) and is_word_character(piece[0]) for piece in pieces]
        ends = [bool(piece) and is_word_character(piece[-1]) for piece in pieces]
        return cls(np.array(begins, np.bool_), np.array(ends, np.bool_))
