"""What users send: an endless row of texts or JPEG files, none of them twice.

The gateway caches embeddings of texts, so a text that comes again would measure the cache.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.encoders.models import FIRST_WORD, VOCABULARY, photo

Item = str | bytes
"""A text, or a JPEG file."""
MIXED_WORDS = (5, 60)
"""Fewest and most words of texts of mixed lengths."""
PHOTOS = 32
"""Different pictures; their files differ each time in a comment."""


@dataclass(frozen=True)
class Traffic:
    """One kind of request.

    Attributes:
        tokens: Length of the texts with the tokens around them; 0 for mixed lengths; None for
            images.
    """

    tokens: int | None

    @property
    def title(self) -> str:
        """Name of the items in a table."""
        if self.tokens is None:
            return "from jpeg"
        return f"{self.tokens} tokens" if self.tokens else "{}–{} words".format(*MIXED_WORDS)

    def items(self, seed: int) -> Iterator[Item]:
        """Endless; another seed gives other items."""
        return photos(seed) if self.tokens is None else texts(self.tokens, seed)


def texts(tokens: int, seed: int) -> Iterator[str]:
    """Random words, each one token."""
    chance = random.Random(seed)
    words = [f"w{number}" for number in range(FIRST_WORD, VOCABULARY)]
    while True:
        count = tokens - 2 if tokens else chance.randint(*MIXED_WORDS)
        yield " ".join(chance.choices(words, k=count))


def photos(seed: int) -> Iterator[bytes]:
    """JPEG files; each has a comment of its own."""
    chance = np.random.default_rng(seed)
    made = [photo(chance) for _ in range(PHOTOS)]
    number = 0
    while True:
        yield add_comment(made[number % PHOTOS], f"{seed} {number}")
        number += 1


def add_comment(jpeg: bytes, comment: str) -> bytes:
    """The file with a comment segment (ITU-T T.81, B.2.4.5) behind its start marker."""
    text = comment.encode()
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + jpeg[2:]
