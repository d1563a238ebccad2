"""Scores of a translator of the example world: BLEU and exact matches.

Imports neither torch nor transformers, so that the same measure serves PyTorch, ONNX and the API.
"""

from random import Random

import sacrebleu

from examples.texts.grammar import sentences
from examples.texts.splits import Split
from export.training.functions import Translate


def score(
    translate: Translate, split: Split, count: int, seed: int = 0, is_shuffled: bool = False
) -> float:
    """Corpus BLEU (sacrebleu, 13a, cased) from 0 to 100 over `count` sentences of a split.

    With `is_shuffled` every translation is compared with another sentence's reference: the score of
    a translator that ignores its source.
    """
    pairs = list(sentences(split, count, seed))
    references = [pair.english for pair in pairs]
    if is_shuffled:
        Random(seed).shuffle(references)
    translations = translate([pair.spanish for pair in pairs])
    return float(sacrebleu.corpus_bleu(translations, [references]).score)


def exact_share(translate: Translate, split: Split, count: int, seed: int = 0) -> float:
    """The share of sentences, 0 to 1, whose translation equals the reference."""
    pairs = list(sentences(split, count, seed))
    translations = translate([pair.spanish for pair in pairs])
    right = sum(made == pair.english for made, pair in zip(translations, pairs, strict=True))
    return right / count


def remembering(translate: Translate) -> Translate:
    """The function with a cache: each text is translated once."""
    known: dict[str, str] = {}

    def remembered(texts: list[str]) -> list[str]:
        new = [text for text in texts if text not in known]
        known.update(zip(new, translate(new), strict=True))
        return [known[text] for text in texts]

    return remembered
