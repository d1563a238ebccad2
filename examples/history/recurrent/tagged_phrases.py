"""Noun phrases whose words have tags: determiners, adjectives, nouns, names, places."""

from dataclasses import dataclass
from random import Random
from typing import Literal

from examples.history.recurrent.tagged_words import (
    ANIMALS,
    DEGREES,
    NUMBERS,
    PEOPLE,
    PERSON_NAMES,
    PLACE_NAMES,
    PLACES,
    PLURAL_DETERMINERS,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    QUALITIES,
    SINGULAR_DETERMINERS,
    THINGS,
    UNCOUNTED,
)
from examples.texts import english

Tag = Literal[
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
]  # fmt: skip
TAGS: tuple[Tag, ...] = (
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
)  # fmt: skip

Tagged = tuple[tuple[str, Tag], ...]
"""Words with their parts of speech."""


@dataclass(frozen=True)
class Phrase:
    """Words with tags, and the pairs of content words that decide the split.

    Attributes:
        head: The content word that pairs are made with; none for a pronoun.
        person: Of a subject, as `english` numbers them.
    """

    words: Tagged
    pairs: frozenset[str] = frozenset()
    head: str = ""
    person: int = 2

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.words + other.words, self.pairs | other.pairs, self.head, self.person)


def one(word: str, tag: Tag) -> Phrase:
    """Words of one tag."""
    return Phrase(tuple((part, tag) for part in word.split()))


def _plural(entry: str) -> str:
    singular, _, irregular = entry.partition("/")
    return irregular or english.plural(singular)


def paired(phrase: Phrase, *pairs: tuple[str, str]) -> Phrase:
    """The phrase with pairs of content words; those with an empty side are left out."""
    named = frozenset(f"{one}|{other}" for one, other in pairs if one and other)
    return Phrase(phrase.words, phrase.pairs | named, phrase.head, phrase.person)


def noun_phrase(rng: Random, *tables: tuple[str, ...], depth: int = 0) -> Phrase:
    """Determiner or owner, perhaps adjectives, a noun, perhaps a prepositional phrase."""
    entry = rng.choice(rng.choice(tables or (PEOPLE, ANIMALS, THINGS)))
    is_plural = entry not in UNCOUNTED and rng.random() < 0.3
    singular = entry.partition("/")[0]
    noun = _plural(entry) if is_plural else singular
    qualities, pairs = _qualities(rng, singular)
    following = (qualities.words or ((noun, "noun"),))[0][0]
    phrase = _determined(rng, following, is_plural, entry in UNCOUNTED, depth) + qualities
    phrase += one(noun, "noun")
    if depth < 1 and rng.random() < 0.12:
        phrase += prepositional_phrase(rng, depth + 1)
    return Phrase(phrase.words, phrase.pairs | pairs, singular, 1 if is_plural else 2)


def _qualities(rng: Random, noun: str) -> tuple[Phrase, frozenset[str]]:
    phrase, pairs = Phrase(()), set()
    for _ in range(rng.choices((0, 1, 2), (6, 3, 1))[0]):
        quality = rng.choice(QUALITIES)
        pairs.add(f"{quality}|{noun}")
        if rng.random() < 0.12:
            phrase += one(rng.choice(DEGREES), "adverb")
        phrase += one(quality, "adjective")
    return phrase, frozenset(pairs)


def _determined(
    rng: Random, following: str, is_plural: bool, is_uncounted: bool, depth: int
) -> Phrase:
    roll = rng.random()
    if roll < 0.3:
        return one("the", "determiner")
    if roll < 0.5:
        return one(rng.choice(POSSESSIVES), "possessive")
    if roll < 0.6 and depth < 1:
        if rng.random() < 0.5:
            return one(rng.choice(PERSON_NAMES), "name") + one("'s", "possessive")
        owner = noun_phrase(rng, PEOPLE, depth=2)
        clitic = english.genitive(owner.words[-1][0]).removeprefix(owner.words[-1][0])
        return owner + one(clitic, "possessive")
    if is_uncounted:
        return Phrase(()) if roll < 0.85 else one(rng.choice(("some", "this")), "determiner")
    if is_plural:
        if roll < 0.7:
            return Phrase(())
        if roll < 0.8:
            return one(rng.choice(NUMBERS), "number")
        return one(rng.choice(PLURAL_DETERMINERS), "determiner")
    chosen = rng.choice(("a", "a", *SINGULAR_DETERMINERS))
    return one(english.article(following) if chosen == "a" else chosen, "determiner")


def object_phrase(rng: Random) -> Phrase:
    """A pronoun, a name, or a noun phrase."""
    roll = rng.random()
    if roll < 0.2:
        return one(rng.choice(tuple(PRONOUNS.values()))[1], "pronoun")
    if roll < 0.28:
        return one(rng.choice(PERSON_NAMES), "name")
    return noun_phrase(rng, THINGS, THINGS, THINGS, ANIMALS, PEOPLE, UNCOUNTED)


def prepositional_phrase(rng: Random, depth: int = 0) -> Phrase:
    """Behind the old tree; in Rome. At depth 1 its noun has no such phrase in turn."""
    preposition = one(rng.choice(PREPOSITIONS), "preposition")
    if rng.random() < 0.2:
        return preposition + one(rng.choice(PLACE_NAMES), "name")
    return preposition + noun_phrase(rng, PLACES, PLACES, THINGS, PEOPLE, depth=depth + 1)
