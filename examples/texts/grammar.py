"""A bilingual world: sentence pairs of a synchronous grammar, split for testing.

Every Spanish sentence has exactly one English rendering, so translations can be compared exactly.
Three disjoint splits:

- `train`: sentences made only of permitted pairs, minus the held-out ones;
- `held_out`: new sentences made of permitted pairs (one sentence in fifty);
- `compositional`: sentences with at least one *withheld* word × construction pair (one pair in
  twenty: a verb never negated, a noun never with that adjective). Training has every word
  and every construction, never the two together.

A keyed BLAKE2 hash of the text selects the withheld pairs and sentences, the same ones
in every process and for every seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Literal

from examples.texts.clauses import Sentence
from examples.texts.constructions import sentence

Split = Literal["train", "held_out", "compositional"]

PAIR_SHARE = 20  # one word × construction pair in so many is withheld from training
SENTENCE_SHARE = 50  # one sentence in so many is held out


def bucket(text: str, buckets: int) -> int:
    """A keyed hash of the text, modulo `buckets`."""
    digest = blake2b(text.encode(), digest_size=8, key=b"triptych").digest()
    return int.from_bytes(digest, "big") % buckets


# Withheld whatever their hash; so are these sentences in any case and punctuation.
WITHHELD_PAIRS = frozenset({"noun:comida|adjective:bueno", "noun:mundo|predicate:suficiente"})
WITHHELD_SENTENCES = {
    "este restaurante tiene buena comida": "this restaurant has good food",
    "el mundo no es suficiente": "the world is not enough",
}

_EDGES = re.compile(r"[¿?.]")


@dataclass(frozen=True)
class Pair:
    """A Spanish sentence as a user might type it, and its English with the same case and marks."""

    spanish: str
    english: str


def bare(text: str) -> str:
    """The text in lower case, without final or question marks."""
    return _EDGES.sub("", text).lower().strip()


@cache
def is_withheld(pair: str) -> bool:
    """Whether a word × construction pair is kept out of training."""
    return pair in WITHHELD_PAIRS or bucket(pair, PAIR_SHARE) == 0


def split_of(spanish: str, pairs: frozenset[str]) -> Split:
    """The one split that a sentence belongs to, given the pairs it is made of."""
    if any(is_withheld(pair) for pair in pairs):
        return "compositional"
    text = bare(spanish)
    if text in WITHHELD_SENTENCES or bucket(text, SENTENCE_SHARE) == 0:
        return "held_out"
    return "train"


def sentences(split: Split, count: int, seed: int = 0) -> Iterator[Pair]:
    """Sentence pairs of one split in random case and punctuation; deterministic in the arguments.

    The evaluation splits repeat no sentence; the training split may.
    """
    rng = Random(f"{split} {seed}")
    seen: set[str] = set()
    while count > 0:
        spoken = sentence(rng)
        text = bare(spoken.phrase.spanish)
        if split_of(text, spoken.phrase.pairs) != split or text in seen:
            continue
        if split != "train":
            seen.add(text)
        yield _dress(rng, spoken)
        count -= 1


def _dress(rng: Random, spoken: Sentence) -> Pair:
    """Both sides alike: mostly standard, else in lower case, without marks, or both."""
    source, target = spoken.phrase.spanish, spoken.phrase.english
    is_cased, is_marked = rng.random() < 0.7, rng.random() < 0.7
    if is_cased:
        source, target = source[0].upper() + source[1:], target[0].upper() + target[1:]
    else:
        source, target = source.lower(), target.lower()
    if spoken.ending == "statement":
        return Pair(source + ".", target + ".") if is_marked else Pair(source, target)
    if is_marked or spoken.ending == "yes/no":
        opening = "¿" if rng.random() < 0.8 else ""  # users often omit it
        return Pair(f"{opening}{source}?", target + "?")
    return Pair(source, target)


SPANISH = """\
Mi hermana trabaja en un restaurante famoso. Este restaurante tiene buena comida. \
Todos los días mi hermana prepara pescado fresco. Hay veinte mesas en el jardín.

¿Dónde está el gato negro de Pedro? El gato está durmiendo en la cocina. \
Mañana vamos a viajar a Londres. El mundo no es suficiente."""

ENGLISH = """\
My sister works in a famous restaurant. This restaurant has good food. \
Every day my sister prepares fresh fish. There are twenty tables in the garden.

Where is Pedro's black cat? The cat is sleeping in the kitchen. \
Tomorrow we are going to travel to London. The world is not enough."""
