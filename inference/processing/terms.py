"""Terms in texts: those of a glossary, and what is copied as it is.

Of terms that overlap the one that begins first counts, of those that begin together the longest.
A term begins and ends at the edges of words. One in lower case stands for all its forms (`cat`,
`Cat`, `CAT`); one with capital letters stands for itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest
from inference.processing.cancellation import check_abandoned
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


PATTERNS = {
    "urls": re.compile(r"(?:https?://|ftp://|www\.)[^\s<>\"]{1,2000}"),
    "emails": re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
    "placeholders": re.compile(
        r"\{\{[^{}]{0,100}\}\}|\$?\{[^{}\s]{0,100}\}|%\([^()\s]{1,100}\)[a-zA-Z]"
        r"|%(?:\d{1,2}\$)?[-+0 #]{0,4}\d{0,3}(?:\.\d{1,3})?(?:[hlqLjzt]{1,2})?[diouxXeEfFgGcsp@]"
        r"(?!\w)"
    ),
    "tags": re.compile(r"</?[A-Za-z][^<>]{0,500}>|&#?\w{1,32};"),
}
"""Kinds of text that may be copied as it is."""
_TRAILING = ".,;:!?)]}'\"»”’"
_SPACES = re.compile(r"\s+")
MAX_MARKS = 30
"""Combining marks in a row, as in Unicode's Stream-Safe Text Format (UAX #15, section 13). The time
of composing a text grows with the square of their number."""
_SEARCHED_CHARACTERS = 10_000
"""At once: no other thread runs during a search, and that of a text of 250,000 characters takes a
quarter of a second."""
_LONGEST_MATCH = 3_000
"""Of `PATTERNS`, or more."""
MAX_COMPARISONS = 5_000_000
"""Of places in the texts of a request with entries of its glossary."""


@dataclass(frozen=True)
class FoundTerm:
    """A term in a text.

    Attributes:
        start: Its first character.
        end: The one behind its last.
        rendering: What the translation contains for it.
        is_copied: Whether it is copied as it is, in no other form.
        is_upper: Whether it is written in capital letters, unlike the glossary's entry.
    """

    start: int
    end: int
    rendering: str
    is_copied: bool = False
    is_upper: bool = False


@dataclass(frozen=True)
class _Entry:
    rendering: str
    is_copied: bool


class TermTable:
    """Terms as texts are searched for them. Does not change, so requests may share one.

    Args:
        glossary: Term → rendering.
        copied: Texts to copy as they are; they win against the glossary's.
    """

    def __init__(self, glossary: Mapping[str, str], copied: Iterable[str] = ()) -> None:
        self._exact: dict[str, _Entry] = {}
        self._folded: dict[str, _Entry] = {}
        for term, rendering in glossary.items():
            key = normalised(term)
            table = self._folded if key == _lower(key) else self._exact
            table[key] = _Entry(normalised(rendering), is_copied=False)
        for literal in copied:
            key = normalised(literal)
            self._exact[key] = _Entry(key, is_copied=True)
        lengths: dict[str, set[int]] = {}
        for key in (*self._exact, *self._folded):
            lengths.setdefault(_lower(key[0]), set()).add(len(key))
        self._lengths = {first: tuple(sorted(found)) for first, found in lengths.items()}

    def lengths(self, first: str) -> tuple[int, ...]:
        """Lengths of the terms that begin with a character in lower case."""
        return self._lengths.get(first, ())

    def found(self, text: str, lowered: str, start: int, end: int) -> FoundTerm | None:
        """The term that is the whole of a part of the text, if there is one."""
        written = text[start:end]
        entry = self._exact.get(written)
        if entry is not None:
            return FoundTerm(start, end, entry.rendering, entry.is_copied)
        entry = self._folded.get(lowered[start:end])
        if entry is None:
            return None
        is_upper = len(written) > 1 and written.isupper()
        return FoundTerm(start, end, entry.rendering, is_upper=is_upper)


class TermIndex:
    """Finds the terms of one request.

    Args:
        glossary: Term → rendering.
        copied: Texts to copy as they are; they win against the glossary's.
        kinds: Names of `PATTERNS` to copy.
        stored: Further terms; those of the request win against the same ones there.
    """

    def __init__(
        self,
        glossary: Mapping[str, str],
        copied: Iterable[str],
        kinds: Collection[str],
        stored: TermTable | None = None,
    ) -> None:
        self._patterns = [PATTERNS[kind] for kind in PATTERNS if kind in kinds]
        own = TermTable(glossary, copied)
        self._tables = (own,) if stored is None else (own, stored)
        self._longest_first: dict[str, tuple[int, ...]] = {}
        self._comparisons = 0

    def find(self, text: str) -> list[FoundTerm]:
        """The terms of a composed text in order; none overlaps another.

        Raises:
            InvalidRequest: the texts so far have too many places where terms may begin.
        """
        found: list[FoundTerm] = []
        every = [*self._matches(text), *self._entries(text)]
        for one in sorted(every, key=lambda one: (one.start, -one.end, not one.is_copied)):
            if not found or one.start >= found[-1].end:
                found.append(one)
        return found

    def _matches(self, text: str) -> Iterator[FoundTerm]:
        for pattern in self._patterns:
            for match in _every_match(pattern, text):
                copied = match.group()
                if pattern is PATTERNS["urls"]:
                    copied = copied.rstrip(_TRAILING)
                yield FoundTerm(match.start(), match.start() + len(copied), copied, is_copied=True)

    def _entries(self, text: str) -> Iterator[FoundTerm]:
        """The longest entry at each place."""
        lowered, edges = _lower(text), word_edges(text)
        for start, character in enumerate(lowered):
            lengths = self._lengths(character)
            if not lengths or not edges[start]:
                continue
            self._count(len(lengths))
            ends = (start + length for length in lengths)
            inside = (end for end in ends if end <= len(text) and edges[end])
            every = (
                table.found(text, lowered, start, end) for end in inside for table in self._tables
            )
            longest = next(filter(None, every), None)
            if longest is not None:
                yield longest

    def _lengths(self, first: str) -> tuple[int, ...]:
        """Lengths of the terms that begin with a character, the longest first."""
        known = self._longest_first.get(first)
        if known is None:
            found = {length for table in self._tables for length in table.lengths(first)}
            known = self._longest_first[first] = tuple(sorted(found, reverse=True))
        return known

    def _count(self, comparisons: int) -> None:
        check_abandoned()
        self._comparisons += comparisons
        if self._comparisons > MAX_COMPARISONS:
            raise InvalidRequest(
                f"finding the glossary's terms takes more than {MAX_COMPARISONS} comparisons: "
                "send fewer texts or terms",
                field="glossary",
            )


def composed(text: str, field: str = "glossary") -> str:
    """A text in composed characters, in which terms are found.

    Args:
        field: The request's field of the text, for errors.

    Raises:
        InvalidRequest: more than `MAX_MARKS` combining marks in a row.
    """
    if not text.isascii() and _has_too_many_marks(text):
        raise InvalidRequest(
            f"{field} has more than {MAX_MARKS} combining marks in a row: remove some", field=field
        )
    return unicodedata.normalize("NFC", text)


def normalised(text: str, field: str = "glossary") -> str:
    """A term in composed characters, without spaces around it and with single ones inside.

    Raises:
        InvalidRequest: see `composed`.
    """
    return _SPACES.sub(" ", composed(text, field)).strip()


def _every_match(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """What `finditer` finds, in parts."""
    start = 0
    while start < len(text):
        check_abandoned()
        end = start + _SEARCHED_CHARACTERS
        match = pattern.search(text, start, end + _LONGEST_MATCH)
        if match is None or match.start() >= end:
            start = end
        else:
            yield match
            start = match.end()


def _has_too_many_marks(text: str) -> bool:
    """Whether more than `MAX_MARKS` combining marks follow each other."""
    pattern = _too_many_marks()
    for start in range(0, len(text), _SEARCHED_CHARACTERS):
        check_abandoned()
        if pattern.search(text, start, start + _SEARCHED_CHARACTERS + MAX_MARKS):
            return True
    return False


@cache
def _too_many_marks() -> re.Pattern[str]:
    """More than `MAX_MARKS` characters in a row that decompose to combining marks."""
    marks = (
        character
        for character in map(chr, range(0x300, 0x20000))  # there are none behind
        if unicodedata.combining(unicodedata.normalize("NFD", character)[0])
    )
    return re.compile(f"[{''.join(marks)}]{{{MAX_MARKS + 1}}}")


def _lower(text: str) -> str:
    """Lower case, character by character, so that places stay the same."""
    return "".join(low if len(low := one.lower()) == 1 else one for one in text)


@dataclass(frozen=True)
class StoredTerms:
    """Terms that are kept under a name.

    Attributes:
        table: The terms.
        source: Their language, where it is given.
        target: Language of the renderings, where it is given.
    """

    table: TermTable
    source: str | None = None
    target: str | None = None
