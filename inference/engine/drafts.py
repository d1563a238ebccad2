"""Draft tokens: what a sequence may go on with, found in the text that it has so far (D100).

Prompt lookup (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding): where the last tokens
occurred before, those that followed them are likely to follow again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SIZES = (3, 2)
"""Tokens that are looked up; the longest found decides."""
CALL_ROWS = 8
"""Rows that take as long as what a call takes without any (6 to 17, docs/speed.md)."""
MOST_ROWS = 32
"""Calls get no drafts beyond so many rows: where they pay, they pay little there."""
_FIRST_RATE, _RATE_WEIGHT = 0.4, 1 / 8


class Draft(NamedTuple):
    """Tokens that may follow.

    Attributes:
        token_ids: First to last; may be empty.
        rate: Estimated probability of each to be right if those before it are.
    """

    token_ids: Sequence[int]
    rate: float


class Drafter:
    """Finds drafts of one sequence, and how often they are right.

    Every next token is compared with what would have been its draft, whether that was computed or
    not. So drafts can begin to pay at any time, and no row is spent on an attempt.

    Args:
        token_ids: Of the source, where there is one, then of the decoder.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # n-gram → place of the token behind it
        self._rates = dict.fromkeys(SIZES, _FIRST_RATE)
        self._expected: list[int] = []  # next tokens according to the last draft
        self._size = SIZES[0]  # of its n-gram
        for token_id in token_ids:
            self._append(token_id)

    def find(self, most: int) -> Draft:
        """At most so many tokens that may follow the text; the last occurrence decides."""
        self._expected = []
        for size in SIZES:
            place = self._places.get(tuple(self._text[-size:]))
            if place is not None and most > 0:
                followed = self._text[place : place + most]
                while len(followed) < most:  # it has reached the end: the text repeats itself
                    followed += followed[: most - len(followed)]
                self._expected, self._size = followed, size
                return Draft(followed, self._rates[size])
        return Draft((), 0.0)

    def accept(self, token_id: int) -> None:
        """Adds the token that was chosen."""
        if self._expected:
            is_right = self._expected[0] == token_id
            rate = self._rates[self._size]
            self._rates[self._size] += (is_right - rate) * _RATE_WEIGHT
            self._expected = self._expected[1:] if is_right else []
        self._append(token_id)

    def _append(self, token_id: int) -> None:
        place = len(self._text)
        for size in SIZES:
            if place >= size:
                self._places[tuple(self._text[-size:])] = place
        self._text.append(token_id)


def trim_drafts(drafts: Sequence[Draft], *, is_padded: bool) -> list[Sequence[int]]:
    """The part of each sequence's draft that is worth its rows; all empty where none is.

    A call with R rows takes as long as `CALL_ROWS` + R rows. It should bring more tokens in that
    time than without drafts.

    Args:
        is_padded: Whether all sequences take as many rows as the one with the longest draft.
    """
    count = len(drafts)
    least = count / (CALL_ROWS + count)  # tokens that a row must bring
    worth = [_worth(draft, least) for draft in drafts]
    best, best_pace = 0, least
    for length in range(1, max(map(len, worth)) + 1):
        lengths = [min(length, len(each)) for each in worth]
        rows = count * (1 + length) if is_padded else count + sum(lengths)
        if rows > MOST_ROWS:
            break
        expected = sum(
            draft.rate**place
            for draft, cut in zip(drafts, lengths, strict=True)
            for place in range(1, cut + 1)
        )
        pace = (count + expected) / (CALL_ROWS + rows)
        if pace > best_pace:
            best, best_pace = length, pace
    return [each[:best] for each in worth]


def _worth(draft: Draft, least: float) -> Sequence[int]:
    """The first tokens of a draft, while they are right with at least that probability."""
    chance = 1.0
    for place in range(len(draft.token_ids)):
        chance *= draft.rate
        if chance < least:
            return draft.token_ids[:place]
    return draft.token_ids
