"""Scores of a gazette translator: BLEU, exact matches, and agreement with the grammar's alignment.

Imports neither torch nor transformers, so that the same measures serve PyTorch, ONNX and the API.
"""

from collections.abc import Iterable
from functools import cache

from examples.en_fr.gazette import GazettePair, sentences
from examples.es_en.scores import Pairs, corpus_bleu, share_equal
from examples.texts.grammar import Split
from export.training.functions import Read, Translate

LENGTHS = ((4, 7), (8, 11), (12, 15), (16, 19), (20, 28))
"""First and last number of words and marks, of scores by length."""


def score(
    translate: Translate, split: Split, count: int, seed: int = 0, is_shuffled: bool = False
) -> float:
    """`corpus_bleu` over `count` sentences of a split; see there for `is_shuffled`."""
    pairs = _texts(sentences(split, count, seed))
    return corpus_bleu(translate, pairs, seed if is_shuffled else None)


def exact_share(translate: Translate, split: Split, count: int, seed: int = 0) -> float:
    """The share of sentences, 0 to 1, whose translation equals the reference."""
    return share_equal(translate, _texts(sentences(split, count, seed)))


def length_score(translate: Translate, first: int, last: int, count: int) -> float:
    """Corpus BLEU, 0 to 100, over sentences with `first` to `last` words and marks.

    Over at most `count` such sentences of the compositional split, fewer where they are rare.
    """
    drawn = _compositional(20 * count, 0)
    pairs = [pair for pair in drawn if first <= len(pair.english) <= last][:count]
    return corpus_bleu(translate, _texts(pairs))


def _texts(pairs: Iterable[GazettePair]) -> Pairs:
    return [(pair.source, pair.target) for pair in pairs]


@cache
def _compositional(count: int, seed: int) -> tuple[GazettePair, ...]:
    return tuple(sentences("compositional", count, seed))


def alignment_share(
    read: Read, split: Split, count: int, seed: int = 0, only_reversed: bool = False
) -> float:
    """The share of French nouns and adjectives, 0 to 1, aligned best with their English word.

    All words of a sentence that is not translated exactly count as wrong.

    Args:
        only_reversed: Count the words of phrases that stand in another order in English.
    """
    pairs = list(sentences(split, count, seed))
    readings = read([pair.source for pair in pairs])
    right = total = 0
    for pair, reading in zip(pairs, readings, strict=True):
        links = reversed_links(pair) if only_reversed else pair.links
        total += len(links)
        if reading.text == pair.target:
            right += sum(reading.attention[target].argmax() == source for target, source in links)
    return right / total


def reversed_links(pair: GazettePair) -> tuple[tuple[int, int], ...]:
    """The links that cross a neighbouring link."""
    crossing: set[tuple[int, int]] = set()
    for first, second in zip(pair.links, pair.links[1:], strict=False):
        if second[0] == first[0] + 1 and second[1] < first[1]:
            crossing |= {first, second}
    return tuple(sorted(crossing))
