"""How far each word of a translation comes from each word of its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from triptych.tasks.translate import Alignment

Links = npt.NDArray[np.float64]
"""Words of the translation x words of the source; each row's sum is 1."""
Span = tuple[int, int]

_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts without spaces between words: each character counts as one."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+(?:['’\-][^\W{_ALONE}]+)*|[^\w\s]")
MAX_LINKS = 25_000_000
"""5,000 words, in both languages; a text has fewer tokens."""
_REACH = 40
"""Characters that a token may be away from the end of the one before it."""
_PRIOR = 0.02
"""Weight of the order of words, which decides where attention does not."""


def words(text: str) -> list[Span]:
    """Where each word is; a punctuation mark is one."""
    return [match.span() for match in _WORD.finditer(text)]


def links(source: str, target: str, alignment: Alignment | None) -> Links:
    """Links by the model's attention; by the order of words where there is none.

    Raises:
        InvalidRequest: too many words.
    """
    rows, columns = words(target), words(source)
    if len(rows) * len(columns) > MAX_LINKS:
        raise InvalidRequest(
            f"a paragraph with markup has {len(columns)} words, its translation {len(rows)}: "
            "divide it"
        )
    by_order = _in_order(rows, len(target), columns, len(source))
    if alignment is None or not alignment.weights:
        return by_order
    weights = np.asarray(alignment.weights, np.float64)
    tokens = _owners(_places(alignment.target_tokens, target), rows)
    sources = _owners(_places(alignment.source_tokens, source), columns)
    summed = tokens.T @ weights @ sources
    return _normalised(_normalised(summed) + _PRIOR * by_order)


def _in_order(rows: Sequence[Span], height: int, columns: Sequence[Span], width: int) -> Links:
    """Words at the same relative place are linked, others the less the farther they are."""
    if not rows or not columns:
        return np.zeros((len(rows), len(columns)))
    at_row = np.array([(start + end) / 2 / height for start, end in rows])
    at_column = np.array([(start + end) / 2 / width for start, end in columns])
    found: Links = at_row[:, None] - at_column[None, :]
    np.abs(found, out=found)  # in place: a long paragraph's take 200 MB
    np.negative(found, out=found)
    found *= 4
    found *= max(len(rows), len(columns))
    np.exp(found, out=found)
    found += 1e-9
    return _normalised(found)


def _places(tokens: Sequence[str], text: str) -> list[Span | None]:
    """Where each token is in the text; None for those that are not, e.g. special ones."""
    plain = text.lower() if len(text.lower()) == len(text) else text
    found: list[Span | None] = []
    end = 0
    for token in tokens:
        piece = token.strip()
        piece = piece.lower() if plain is not text else piece
        start = plain.find(piece, end, end + _REACH + len(piece)) if piece else -1
        found.append((start, start + len(piece)) if start >= 0 else None)
        end = start + len(piece) if start >= 0 else end
    return found


def _owners(tokens: Sequence[Span | None], owners: Sequence[Span]) -> Links:
    """(tokens, words): 1 where a token is in a word."""
    found = np.zeros((len(tokens), len(owners)))
    word = 0
    for row, place in enumerate(tokens):
        if place is None:
            continue
        while word < len(owners) and owners[word][1] <= place[0]:
            word += 1
        if word < len(owners) and owners[word][0] < place[1]:
            found[row, word] = 1
    return found


def _normalised(weights: Links) -> Links:
    totals: Links = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
