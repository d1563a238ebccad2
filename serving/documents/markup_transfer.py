"""Inline elements around the words of a translation that come from the words inside them.

An element stays one: it encloses the interval of words that gains most from it, where the links of
a word count for the elements that its sources are in. Elements within an element are placed within
its interval. Markup without text follows the word that it followed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidRequest
from serving.documents.segment import Inline

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
    return _normalise(_normalise(summed) + _PRIOR * by_order)


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
    return _normalise(found)


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


def _normalise(weights: Links) -> Links:
    totals: Links = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)


Shares = npt.NDArray[np.float64]


def transfer_markup(segment: Inline, translation: str, links: Links | None) -> Inline:
    """The segment's markup around its translation.

    Args:
        links: Words of the translation x words of the source; None for a plain segment.
    """
    return _Placement(segment.text, translation, links).whole(segment)


@dataclass(frozen=True)
class _Child:
    """An element, where it is in the source, and the words that it takes of its parent's."""

    element: Inline
    start: int
    end: int


class _Placement:
    def __init__(self, source: str, target: str, links: Links | None) -> None:
        self._source, self._target = source, target
        self._source_words, self._target_words = words(source), words(target)
        self._links = np.zeros((0, 0)) if links is None else links

    def whole(self, segment: Inline) -> Inline:
        inside = self._children(segment, 0, (0, len(self._target_words)), (0, len(self._target)))
        return Inline(segment.key, inside)

    def _children(
        self, parent: Inline, offset: int, within: Span, characters: Span
    ) -> tuple[Inline | str, ...]:
        """Children of an element whose text begins at `offset` and which takes these words."""
        found = _offsets(parent, offset)
        textual = [child for child in found if child.element.text.strip()]
        taken = self._intervals(parent, offset, textual, within)
        pieces = [
            (self._characters(interval), child)
            for child, interval in zip(textual, taken, strict=True)
        ]
        ends = [span for span, _ in pieces]
        for child in found:
            if not child.element.text.strip():
                place = self._point(child, within, characters, ends)
                pieces.append(((place, place), child))
        pieces.sort(key=lambda piece: piece[0])  # stable: points at one place keep their order
        children: list[Inline | str] = []
        done = characters[0]
        for (start, end), child in pieces:
            children.append(self._target[done:start])
            children.append(self._element(child, start, end))
            if start == end and self._is_apart(child) and not self._target[end : end + 1].isspace():
                children.append(" ")
            done = end
        children.append(self._target[done : characters[1]])
        return tuple(child for child in children if child != "")

    def _is_apart(self, child: _Child) -> bool:
        """Whether it is markup without text, with white space on both sides."""
        if child.element.text.strip():
            return False
        around = (
            self._source[child.start - 1 : child.start],
            self._source[child.end : child.end + 1],
        )
        return all(side.isspace() for side in around)

    def _element(self, child: _Child, start: int, end: int) -> Inline:
        if not child.element.text.strip():
            return child.element
        within = [
            number for number, (a, b) in enumerate(self._target_words) if start <= a and b <= end
        ]
        interval = (within[0], within[-1] + 1) if within else (0, 0)
        return Inline(
            child.element.key, self._children(child.element, child.start, interval, (start, end))
        )

    def _intervals(
        self, parent: Inline, offset: int, children: Sequence[_Child], within: Span
    ) -> list[Span]:
        """The words that each child takes; together all of them if the parent has no own text."""
        if not children:
            return []
        own = [child for child in parent.children if isinstance(child, str)]
        takes_all = not any(text.strip() for text in own)
        if takes_all and len(children) == 1:
            return [within]
        first, last = within
        shares = np.stack([self._share(child.start, child.end) for child in children])
        mine = self._links[first:last] @ shares.T  # words x children
        whole = self._links[first:last] @ self._share(offset, offset + len(parent.text))
        gains = 2 * mine - whole[:, None] - 1e-6
        free = np.ones(last - first, bool)
        taken: list[Span] = [(first, first)] * len(children)
        order = sorted(range(len(children)), key=lambda i: children[i].end - children[i].start)
        for index in order:
            interval = _best_interval(gains[:, index], mine[:, index], free)
            if interval is not None:
                free[slice(*interval)] = False
                taken[index] = (first + interval[0], first + interval[1])
        if takes_all:
            taken = _without_gaps(taken, within)
        return taken

    def _share(self, start: int, end: int) -> Shares:
        """How much of each word of the source is between two places."""
        return np.array(
            [max(0, min(b, end) - max(a, start)) / (b - a) for a, b in self._source_words]
        )

    def _characters(self, interval: Span) -> Span:
        """Of an interval of words; of an empty one, the place in front of its first."""
        first, last = interval
        if first == last:
            at = self._target_words[first][0] if first < len(self._target_words) else None
            place = len(self._target) if at is None else at
            return place, place
        return self._target_words[first][0], self._target_words[last - 1][1]

    def _point(self, child: _Child, within: Span, characters: Span, taken: Sequence[Span]) -> int:
        """Where markup without text goes: behind the word it was behind, never inside another."""
        before = [n for n, (_, end) in enumerate(self._source_words) if end <= child.start]
        behind = [n for n, (start, _) in enumerate(self._source_words) if start >= child.end]
        if not before or within[0] == within[1]:
            return characters[0]
        if not behind:
            return characters[1]
        row = int(np.argmax(self._links[slice(*within), before[-1]])) + within[0]
        place = self._target_words[row][1]
        is_spaced = self._source[child.start - 1 : child.start].isspace()
        if is_spaced and row + 1 < within[1]:
            place = self._target_words[row + 1][0]
        return next((end for start, end in taken if start < place < end), place)


def _offsets(parent: Inline, offset: int) -> list[_Child]:
    found: list[_Child] = []
    for child in parent.children:
        length = len(child) if isinstance(child, str) else len(child.text)
        if isinstance(child, Inline):
            found.append(_Child(child, offset, offset + length))
        offset += length
    return found


def _best_interval(
    gains: Shares, mine: Shares, free: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """The free words with the largest sum of gains; at least one, unless none is free."""
    best, best_sum, start, total = None, 0.0, 0, 0.0
    for place, gain in enumerate(gains):
        if not free[place] or total <= 0:
            start, total = place, 0.0
        if not free[place]:
            start = place + 1
            continue
        total += float(gain)
        if total > best_sum:
            best, best_sum = (start, place + 1), total
    if best is None and free.any():
        place = int(np.argmax(np.where(free, mine, -1)))
        best = (place, place + 1)
    return best


def _without_gaps(taken: Sequence[Span], within: Span) -> list[Span]:
    """The intervals, each as far as the next one, the first one from the beginning."""
    order = sorted((i for i, (a, b) in enumerate(taken) if b > a), key=lambda i: taken[i])
    grown = list(taken)
    for number, index in enumerate(order):
        start = within[0] if number == 0 else taken[index][0]
        end = taken[order[number + 1]][0] if number + 1 < len(order) else within[1]
        grown[index] = (start, end)
    return grown
