"""How well anything translates the example world: a function in, a BLEU score out.

Imports neither torch nor transformers, so that the same measure serves PyTorch, ONNX and the API.
"""

from collections.abc import Callable
from random import Random

import sacrebleu

from export.examples.grammar import sentences
from export.examples.splits import Split

Translate = Callable[[list[str]], list[str]]


def score(
    translate: Translate, split: Split, count: int, seed: int = 0, is_shuffled: bool = False
) -> float:
    """Corpus BLEU (sacrebleu, 13a, cased) from 0 to 100 over `count` sentences of a split.

    With `is_shuffled` every translation is held against another sentence's reference: what is left
    is what a translator scores that ignores its source.
    """
    pairs = list(sentences(split, count, seed))
    references = [pair.english for pair in pairs]
    if is_shuffled:
        Random(seed).shuffle(references)
    translations = translate([pair.spanish for pair in pairs])
    return float(sacrebleu.corpus_bleu(translations, [references]).score)


def exact_share(translate: Translate, split: Split, count: int, seed: int = 0) -> float:
    """The share of sentences, 0 to 1, whose translation is the reference to the letter."""
    pairs = list(sentences(split, count, seed))
    translations = translate([pair.spanish for pair in pairs])
    right = sum(made == pair.english for made, pair in zip(translations, pairs, strict=True))
    return right / count


def remembering(translate: Translate) -> Translate:
    """The same function, asked once for what it is asked twice."""
    known: dict[str, str] = {}

    def remembered(texts: list[str]) -> list[str]:
        new = [text for text in texts if text not in known]
        known.update(zip(new, translate(new), strict=True))
        return [known[text] for text in texts]

    return remembered
