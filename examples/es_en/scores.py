"""Scores of a translator of the example world: BLEU and exact matches.

Imports neither torch nor transformers, so that the same measure serves PyTorch, ONNX and the API.
"""

from collections.abc import Sequence
from random import Random

import sacrebleu

from examples.texts.grammar import sentences
from examples.texts.splits import Split
from export.training.functions import Translate

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
