"""Alignment accuracy of a translator on inverted noun–adjective pairs.

"el gato negro" is "the black cat": the noun and its adjective change places, so a monotone
alignment is wrong for both. Imports neither torch nor transformers.
"""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from examples.texts import english, spanish
from examples.texts.grammar import bare, sentences
from examples.texts.lexicon import ADJECTIVES, NOUNS
from examples.texts.splits import Split
from export.training.functions import Read

Link = tuple[int, int]  # (English word, the Spanish word that it translates)


def inversion_shares(read: Read, split: Split, count: int, seed: int = 0) -> tuple[float, float]:
    """Alignment of inverted nouns and adjectives in correct translations.

    Returns:
        The share aligned best with their own word, and with the other of the two, 0 to 1.
    """
    pairs = [pair for pair in sentences(split, count, seed) if links(pair.spanish, pair.english)]
    readings = read([pair.spanish for pair in pairs])
    own = other = total = 0
    for pair, reading in zip(pairs, readings, strict=True):
        if reading.text != pair.english:
            continue
        for adjective, noun in links(pair.spanish, pair.english):
            for (target, source), (_, rival) in ((adjective, noun), (noun, adjective)):
                looked_at = int(reading.attention[target].argmax())
                total += 1
                own += looked_at == source
                other += looked_at == rival
    return own / total, other / total


def links(source: str, target: str) -> list[tuple[Link, Link]]:
    """The (adjective, noun) pairs of a sentence whose order is reversed in Spanish."""
    theirs, ours = bare(source).split(), bare(target).split()
    found = []
    for place, words in enumerate(pairwise(theirs)):
        for at, pair in enumerate(pairwise(ours)):
            if pair in _translations().get(words, ()):
                found.append(((at, place + 1), (at + 1, place)))
    return found


@cache
def _translations() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(noun, adjective) in Spanish → (adjective, noun) in English, in every form."""
    table: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for theirs, ours in _inflected():
        table.setdefault(theirs, set()).add(ours)
    return table


def _inflected() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for noun in NOUNS:
        plurals = (
            noun.spanish_plural or spanish.plural(noun.spanish),
            noun.english_plural or english.plural(noun.english),
        )
        forms = (noun.spanish, noun.english), plurals
        for adjective in ADJECTIVES:
            for is_plural, (theirs, ours) in enumerate(forms):
                form = spanish.agree(adjective.spanish, noun.gender, bool(is_plural))
                yield (theirs, form), (adjective.english, ours)
