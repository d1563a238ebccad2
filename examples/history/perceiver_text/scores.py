"""Accuracy of masked bytes, in the sentences and words of `masked_word_accuracy` (`bert.py`).

A word is masked byte by byte, so that its length is known, unlike behind BERT's one mask.
"""

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from random import Random

from examples.bert.scores import MASK
from examples.texts.grammar import Split, sentences

FillBytesFunction = Callable[[list[str]], list[str]]
"""Texts with masks, one after another → what stands behind them, the most likely byte each."""
MOST_BYTES = 126  # of a text: a checkpoint's positions, less those of its first and last token
WORD = re.compile("[A-Za-z]+")
_BASELINE_SENTENCES = 5000


def masked_words_right(
    fill: FillBytesFunction, split: Split, count: int, seed: int, *, is_shuffled: bool = False
) -> float:
    """Share of words whose every byte is the most likely one; the control shuffles the others."""
    texts, truths = masked_texts(split, count, seed, is_shuffled=is_shuffled)
    return sum(map(str.__eq__, fill(texts), truths)) / count


def masked_bytes_right(fill: FillBytesFunction, split: Split, count: int, seed: int) -> float:
    """Share of bytes of these words that are the most likely ones."""
    texts, truths = masked_texts(split, count, seed)
    filled = "".join(
        each.ljust(len(truth)) for each, truth in zip(fill(texts), truths, strict=True)
    )
    every = "".join(truths)
    return sum(map(str.__eq__, filled, every)) / len(every)


def most_frequent_words_right(split: Split, count: int, seed: int) -> float:
    """What the most frequent word of each length gets right, without reading the sentence."""
    counts: dict[int, Counter[str]] = {}
    for pair in islice(sentences("train", _BASELINE_SENTENCES, seed), _BASELINE_SENTENCES):
        for word in WORD.findall(pair.english):
            counts.setdefault(len(word), Counter())[word] += 1
    frequent = {length: words.most_common(1)[0][0] for length, words in counts.items()}
    _, truths = masked_texts(split, count, seed)
    return sum(frequent.get(len(truth)) == truth for truth in truths) / count


def masked_texts(
    split: Split, count: int, seed: int, *, is_shuffled: bool = False
) -> tuple[list[str], list[str]]:
    """Sentences with one word masked byte by byte, and the words."""
    rng = Random(seed)
    texts: list[str] = []
    truths: list[str] = []
    for pair in sentences(split, 2 * count, seed):
        if len(pair.english.encode()) > MOST_BYTES or len(texts) == count:
            continue
        words = pair.english.split()
        asked = rng.choice([at for at, word in enumerate(words) if WORD.search(word)])
        found = WORD.search(words[asked])
        assert found is not None
        truths.append(found[0])
        words[asked] = WORD.sub(MASK * len(found[0]), words[asked], count=1)
        if is_shuffled:
            rng.shuffle(words)
        texts.append(" ".join(words))
    return texts, truths
