"""Scores of a translator of the example world: BLEU and exact matches.

Imports neither torch nor transformers, so that the same measure serves PyTorch, ONNX and the API.

"el gato negro" is "the black cat": the noun and its adjective change places, so a monotone
alignment is wrong for both. Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from random import Random

import sacrebleu

from examples.texts import english, spanish
from examples.texts.grammar import Split, bare, sentences
from examples.texts.lexicon import ADJECTIVES, NOUNS
from export.training.functions import Read, Translate

Pairs = Sequence[tuple[str, str]]
"""Sentences and their references."""


def score(
    translate: Translate, split: Split, count: int, seed: int = 0, is_shuffled: bool = False
) -> float:
    """`corpus_bleu` over `count` sentences of a split; see there for `is_shuffled`."""
    return corpus_bleu(translate, _pairs(split, count, seed), seed if is_shuffled else None)


def exact_share(translate: Translate, split: Split, count: int, seed: int = 0) -> float:
    """The share of sentences, 0 to 1, whose translation equals the reference."""
    return share_equal(translate, _pairs(split, count, seed))


def _pairs(split: Split, count: int, seed: int) -> Pairs:
    return [(pair.spanish, pair.english) for pair in sentences(split, count, seed)]


def corpus_bleu(translate: Translate, pairs: Pairs, shuffle_seed: int | None = None) -> float:
    """Corpus BLEU (sacrebleu, 13a, cased) from 0 to 100.

    With a seed every translation is compared with another sentence's reference: the score of a
    translator that ignores its source.
    """
    references = [target for _, target in pairs]
    if shuffle_seed is not None:
        Random(shuffle_seed).shuffle(references)
    translations = translate([source for source, _ in pairs])
    return float(sacrebleu.corpus_bleu(translations, [references]).score)


def share_equal(translate: Translate, pairs: Pairs) -> float:
    """The share of translations, 0 to 1, that equal their reference."""
    translations = translate([source for source, _ in pairs])
    right = sum(made == true for made, (_, true) in zip(translations, pairs, strict=True))
    return right / len(pairs)


def remembering(translate: Translate) -> Translate:
    """The function with a cache: each text is translated once."""
    known: dict[str, str] = {}

    def remembered(texts: list[str]) -> list[str]:
        new = [text for text in texts if text not in known]
        known.update(zip(new, translate(new), strict=True))
        return [known[text] for text in texts]

    return remembered


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
