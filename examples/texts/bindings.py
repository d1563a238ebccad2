"""Bindings of few-shot episodes: fixed ones, and ones that are drawn for each episode.

A binding pairs a word with its answer. Some are fixed (a noun and its plural); the others are drawn
for each episode, so that only the episode contains the answer. A keyed hash withholds about one
drawn binding in six from training, whatever the seed: a pair of ordinary words, or every binding of
a made-up word.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Literal

from examples.texts.english import plural
from examples.texts.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, NUMBERS

Split = Literal["train", "held_out"]

WITHHELD_PERCENT = 16
# Syllables of made-up words: few enough that each is one token.
FIRST_HALVES = """bax dov fim gul jat kep lod mur nib pof ruk sil tam vek wob zun
    bol dap fex gim jod kug lar mip nex pul rav sov tig vun waz zem""".split()
SECOND_HALVES = """bo dax fen gip ju kor lim mot nup pag rix sub tek vor wim zad
    bi dun fop gav jem kel lus mig noz pid rom sax tul vit wex zog""".split()


@dataclass(frozen=True)
class Binding:
    """A word or a few words, and the expected answer."""

    given: str
    answer: str


COLOUR_NAMES = tuple(
    word.english
    for word in ADJECTIVES
    if word.kinds >= {"animal", "opening"} and "food" not in word.kinds
)
NUMBER_NAMES = ("one", *(english for _, english in NUMBERS))
FIRST_NAMES = tuple(name for name, _ in NAMES)
CITY_NAMES = tuple(english for _, english in CITIES)

_COUNTED = Counter(noun.english for noun in NOUNS)
_UNIQUE = tuple(noun for noun in NOUNS if _COUNTED[noun.english] == 1)  # a neighbor is two words
OBJECTS = tuple(noun.english for noun in _UNIQUE if noun.countability == "count")
KINDS = ("animal", "food", "person", "clothes", "vehicle", "place", "drink", "text")
MEMBERS = {kind: tuple(noun.english for noun in _UNIQUE if noun.kind == kind) for kind in KINDS}

PLURALS = tuple(
    Binding(noun.english, noun.english_plural or plural(noun.english))
    for noun in _UNIQUE
    if noun.countability == "count"
)
SPANISH = tuple(Binding(noun.english, noun.spanish) for noun in _UNIQUE)
KIND_OF = tuple(Binding(word, kind) for kind, words in MEMBERS.items() for word in words)
_OPPOSITES = """big small; good bad; new old; expensive cheap; long short; difficult easy;
    black white; heavy light; fast slow; rich poor; hot cold; open closed; clean dirty; happy sad;
    sweet bitter; interesting boring; pretty ugly; dangerous safe; buy sell; lose find; ask answer;
    send receive; boy girl; man woman; king queen; father mother; son daughter; brother sister;
    uncle aunt; day night; up down; left right; above below; yes no; always never"""
OPPOSITES = tuple(
    Binding(*words)
    for pair in _OPPOSITES.split(";")
    for words in (pair.split(), reversed(pair.split()))
)
_ORDERS = (
    """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty""",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Monday",
    """January February March April May June July August September October November December
    January""",
)
NEXT = tuple(
    Binding(word, following)
    for order in _ORDERS
    for word, following in zip(order.split(), order.split()[1:], strict=False)
)


@cache
def is_withheld(*words: str) -> bool:
    """Whether a keyed hash withholds this key: the same in every process, unlike `hash`."""
    digest = blake2b(" ".join(words).encode(), digest_size=4, key=b"triptych").digest()
    return int.from_bytes(digest, "big") % 100 < WITHHELD_PERCENT


def made_up(rng: Random, split: Split) -> str:
    """A word of two random syllables, such as "lumdax"."""
    while True:
        word = rng.choice(FIRST_HALVES) + rng.choice(SECOND_HALVES)
        if is_withheld(word) == (split == "held_out"):
            return word


def made_up_words(rng: Random, split: Split, count: int) -> list[str]:
    """`count` different made-up words."""
    words: dict[str, None] = {}
    while len(words) < count:
        words[made_up(rng, split)] = None
    return list(words)


def assigned(
    rng: Random, split: Split, answers: tuple[str, ...], count: int
) -> tuple[Binding, ...]:
    """Ordinary words with randomly assigned answers, all pairs of one split."""
    found: list[Binding] = []
    words = rng.sample(OBJECTS, len(OBJECTS))
    while len(found) < count:
        binding = Binding(words.pop(), rng.choice(answers))
        if is_withheld(binding.given, binding.answer) == (split == "held_out"):
            found.append(binding)
    return tuple(found)


def coined(rng: Random, split: Split, count: int) -> tuple[Binding, ...]:
    """Made-up words, each bound to another made-up word."""
    words = made_up_words(rng, split, 2 * count)
    return tuple(map(Binding, words[:count], words[count:]))


def grouped(rng: Random, split: Split, count: int, members: int = 12) -> tuple[Binding, ...]:
    """The members of `count` kinds, each bound to the made-up name of its kind."""
    kinds = rng.sample(KINDS, count)
    names = made_up_words(rng, split, count)
    return tuple(
        Binding(word, name)
        for kind, name in zip(kinds, names, strict=True)
        for word in rng.sample(MEMBERS[kind], min(members, len(MEMBERS[kind])))
    )


def repeated(rng: Random, split: Split, count: int, is_swapped: bool) -> tuple[Binding, ...]:
    """Two made-up words; the answer repeats them, in the same order or swapped."""
    words = made_up_words(rng, split, 2 * count)
    return tuple(
        Binding(f"{first} {second}", f"{second} {first}" if is_swapped else f"{first} {second}")
        for first, second in zip(words[::2], words[1::2], strict=True)
    )
