"""Terms put into a translation at the places that its attention gives for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.processing.terms import FoundTerm, joins
from inference.processing.tokenizer import Tokenizer

Weights = NDArray[np.float64]

_MOST = 0.65
"""Attention of a neighbouring word that belongs to a term as well; articles and marks have less."""


@dataclass(frozen=True)
class SourceTerm:
    """A term of a source sentence.

    Attributes:
        term: As it was found.
        start: Its first source token.
        end: The source token behind its last.
    """

    term: FoundTerm
    start: int
    end: int


@dataclass(frozen=True)
class Target:
    """A translated sentence.

    Attributes:
        text: The sentence.
        pieces: Its tokens, each by itself.
        weights: (pieces, S) attention to the source tokens.
    """

    text: str
    pieces: list[str]
    weights: Weights


@dataclass(frozen=True)
class _Word:
    """Tokens [first, last) of a target, and its characters [start, end)."""

    first: int
    last: int
    start: int
    end: int


def place_terms(
    ids: Sequence[int], weights: Weights, terms: Sequence[SourceTerm], tokenizer: Tokenizer
) -> Target:
    """A translation that contains every term.

    A rendering that is there already stays. Others replace the words that attend to their term, or
    the word that attends to it most; every word is replaced once, as long as there are enough.

    Args:
        ids: Output tokens.
        weights: (tokens, S) their attention to the source.
        terms: In the order of the source.
    """
    text, pieces = tokenizer.decode(ids), tokenizer.pieces(ids)
    words = _words(ids, text, tokenizer)
    changes: list[tuple[_Word, str]] = []
    taken = np.zeros(len(text) + 1, np.bool_)
    missing = [one for one in terms if not _take_rendering(text, one.term, taken)]
    free = [word for word in words if not taken[word.start : word.end].any()]
    appended: list[str] = []
    for one in missing:
        run = _align(free, weights, one)
        if run is None:
            appended.append(one.term.rendering)
            continue
        free = [word for word in free if word.end <= run.start or word.start >= run.end]
        changes.append((run, _form(one.term, text, run)))
    return _append_terms(_replace_words(Target(text, pieces, weights), changes), appended)


def contains(text: str, terms: Sequence[FoundTerm]) -> bool:
    """Whether a text contains the rendering of every term, each at a place of its own."""
    taken = np.zeros(len(text) + 1, np.bool_)
    longest_first = sorted(terms, key=lambda term: -len(term.rendering))
    return all(_take_rendering(text, term, taken) for term in longest_first)


def _words(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[_Word]:
    """Tokens joined to words; end tokens and tokens without text are left out."""
    words: list[_Word] = []
    start = 0
    for place in range(len(ids)):
        end = min(len(text), len(tokenizer.decode(ids[: place + 1])))
        while start < end and text[start].isspace():
            start += 1
        if start < end:
            if words and words[-1].end == start and joins(text, start):
                words[-1] = _Word(words[-1].first, place + 1, words[-1].start, end)
            else:
                words.append(_Word(place, place + 1, start, end))
        start = max(start, end)
    return words


def _take_rendering(text: str, term: FoundTerm, taken: NDArray[np.bool_]) -> bool:
    """Marks the first free place of a term's rendering; whether there is one."""
    rendering = term.rendering
    forms = {rendering}
    if not term.is_copied:
        forms |= {rendering[0].upper() + rendering[1:]}
    if term.is_upper:
        forms |= {rendering.upper()}
    for start in range(len(text) - len(rendering) + 1):
        end = start + len(rendering)
        if text[start:end] in forms and not (
            taken[start:end].any() or joins(text, start) or joins(text, end)
        ):
            taken[start:end] = True
            return True
    return False


def _align(words: Sequence[_Word], weights: Weights, one: SourceTerm) -> _Word | None:
    """The run of neighbouring words that attend to a term, around the one that does most."""
    if not words:
        return None
    share = [
        float(weights[word.first : word.last, one.start : one.end].sum(axis=1).max())
        for word in words
    ]
    looks = [
        one.start <= int(weights[word.first : word.last].max(axis=0).argmax()) < one.end
        for word in words
    ]
    best = max(range(len(words)), key=lambda index: (looks[index], share[index]))
    looks = [one and part > _MOST for one, part in zip(looks, share, strict=True)]
    first = last = best
    while first and looks[first - 1] and words[first - 1].last == words[first].first:
        first -= 1
    while last + 1 < len(words) and looks[last + 1] and words[last + 1].first == words[last].last:
        last += 1
    return _Word(words[first].first, words[last].last, words[first].start, words[last].end)


def _form(term: FoundTerm, text: str, run: _Word) -> str:
    """A rendering as it is written at a place."""
    rendering = term.rendering
    if term.is_upper:
        return rendering.upper()
    is_first = not any(character.isalnum() for character in text[: run.start])
    if not term.is_copied and is_first and text[run.start].isupper():
        return rendering[0].upper() + rendering[1:]
    return rendering


def _replace_words(target: Target, changes: Sequence[tuple[_Word, str]]) -> Target:
    """The target with other words at these places; the weights of words become their mean."""
    text, pieces, rows = target.text, list(target.pieces), list(target.weights)
    for run, words in sorted(changes, key=lambda change: -change[0].start):
        before, after = text[: run.start], text[run.end :]
        text = before + _between(before, words) + words + _between(words, after) + after
        lead = " " if pieces[run.first].startswith(" ") else ""
        pieces[run.first : run.last] = [lead + words]
        rows[run.first : run.last] = [target.weights[run.first : run.last].mean(axis=0)]
    return Target(text, pieces, np.stack(rows))


def _between(left: str, right: str) -> str:
    """A space where two words would become one."""
    return " " if joins(left[-1:] + right[:1], 1) else ""


def _append_terms(target: Target, renderings: Sequence[str]) -> Target:
    """The target with terms behind it that found no place; they attend to what the end does."""
    text = " ".join(filter(None, [target.text, *renderings]))
    pieces = [*target.pieces, *(f" {words}" for words in renderings)]
    return Target(
        text, pieces, target.weights[[*range(len(target.pieces)), *[-1] * len(renderings)]]
    )
