"""Sentences that are longer than a model takes, as parts that fit.

A part ends at a clause if one ends in its second half, else at white space, else anywhere. Parts
are translated like sentences, so the cut costs the model its view of the other parts only. That
costs agreement and word order, so it is done where a request says so, or where a client has no
sentence to shorten, as with a file.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from inference.processing.sentences import Paragraph

Fits = Callable[[str], bool]
Span = tuple[int, int]

_CLAUSES = (
    re.compile(r"[;:·؛]\s+|[；：፤፥።᠂]\s*|\s+[—–-]\s+"),
    re.compile(r"[,،‚՝]\s+|[，、､፣၊߸᠈]\s*"),
)
_SPACES = re.compile("\\s+|[\u200b\u0f0b\u1361]")
"""White space, and marks that stand between words: zero-width space, Tibetan tsheg, Ethiopic."""
_VIRAMAS = frozenset(
    "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u17d2\u1039\u200d"
)
"""What joins the letter behind it to the one before."""


def with_parts(
    paragraph: Paragraph,
    fits: Fits,
    kept: Iterable[Span] = (),
    part_fits: Fits | None = None,
    count: Callable[[str], None] = lambda part: None,
) -> tuple[Paragraph, int]:
    """The paragraph with parts in place of the sentences that do not fit, and how many these were.

    Args:
        paragraph: A text as its sentences.
        fits: Whether a sentence is short enough.
        kept: Places (first character, behind the last) that are not cut, in order; none overlaps
            another.
        part_fits: Whether a part is short enough, if that is less.
        count: Called with each part; raises where there are enough.
    """
    spans = list(kept)
    sentences, gaps = [], [paragraph.gaps[0]]
    place, divided = len(paragraph.gaps[0]), 0
    for sentence, gap in zip(paragraph.sentences, paragraph.gaps[1:], strict=True):
        inside = _within(spans, place, place + len(sentence))
        whole = [(sentence, "")]
        parts = whole if fits(sentence) else _parts(sentence, part_fits or fits, inside, count)
        divided += len(parts) > 1
        for part, between in parts:
            sentences.append(part)
            gaps.append(between)
        gaps[-1] += gap
        place += len(sentence) + len(gap)
    return Paragraph(tuple(sentences), tuple(gaps)), divided


def _within(spans: Sequence[Span], first: int, last: int) -> list[Span]:
    """The spans that reach into a part of a text, at their places in it."""
    begin = bisect_right(spans, first, key=lambda span: span[1])
    end = bisect_left(spans, last, key=lambda span: span[0])
    return [(start - first, stop - first) for start, stop in spans[begin:end]]


def _parts(
    sentence: str, fits: Fits, kept: Sequence[Span], count: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Each part and the white space behind it."""
    parts, begin = [], 0
    while not fits(rest := sentence[begin:]):
        most = _longest(rest, fits)
        end = _cut(rest, most, _within(kept, begin, begin + most + 2))
        if end >= len(rest):
            break
        part = rest[:end].rstrip()
        following = end + len(rest[end:]) - len(rest[end:].lstrip())
        if not part or following >= len(rest):
            break
        count(part)
        parts.append((part, rest[len(part) : following]))
        begin += following
    return [*parts, (rest, "")]


def _longest(text: str, fits: Fits) -> int:
    """Characters of the longest beginning that fits; at least one, less than all."""
    low, high = 1, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, most: int, kept: Sequence[Span]) -> int:
    """The best place to cut at, at most `most` characters from the beginning."""

    def is_free(end: int) -> bool:
        return not any(start < end < stop for start, stop in kept)

    for pattern, least in (*((clause, most // 2) for clause in _CLAUSES), (_SPACES, 1)):
        ends = [match.end() for match in pattern.finditer(text, 0, most + 1)]
        good = (end for end in ends[::-1] if least <= end and is_free(end))
        if (last := next(good, None)) is not None:
            return last
    for start, end in kept:
        if 0 < start < most < end:
            return start
    while most > 1 and _is_joined(text, most):
        most -= 1
    return most


def _is_joined(text: str, place: int) -> bool:
    """Whether a text must not be cut at a place: marks belong to the letter before them."""
    letter = text[place]
    return (
        letter == "\u200d"
        or unicodedata.category(letter).startswith("M")
        or text[place - 1] in _VIRAMAS
    )
