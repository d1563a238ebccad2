"""The example translator's real work: held-out sentences, each ending where the model ends it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.speed.checkpoints import bundle
from benchmarks.speed.work import Item, Work
from examples.texts.grammar import sentences
from inference.processing.text import load_tokenizer

CACHE = Path(__file__).parents[1] / ".cache"
MAX_NEW_TOKENS = 64
ROUNDS = 16


@cache
def sources(count: int) -> tuple[tuple[int, ...], ...]:
    """Distinct held-out sentences as token ids of the example."""
    tokenizer = load_tokenizer(bundle("example-es-en", "fp32", CACHE))
    texts = dict.fromkeys(pair.spanish for pair in sentences("held_out", 2 * count, seed=1))
    return tuple(tuple(tokenizer.encode(text)) for text in list(texts)[:count])


def example_work(batch: int, beams: int, seed: int) -> Work:
    """A batch that no other round has."""
    start = batch * seed
    items = tuple(Item(source=ids) for ids in sources(ROUNDS * 32)[start : start + batch])
    return Work(items, beams, MAX_NEW_TOKENS, is_forced=False)
