"""Noun phrases of the gazette in both languages, with the grammar's own word alignment.

English stacks adjectives before the noun, French behind it in reverse: *European Economic Area*,
*zone économique européenne*. A phrase records which French word renders which English one, as a
reference for a model's attention.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from random import Random

from examples.en_fr import french
from examples.en_fr.gazette_words import (
    ADJECTIVES,
    COUNTRIES,
    NOUNS,
    NUMBERS,
    GazetteAdjective,
    GazetteNoun,
    Kind,
    Position,
)
from examples.texts import english
from examples.texts.lexicon import Gender


@dataclass(frozen=True)
class Words:
    """The same thing in both languages, word by word; French not yet elided.

    Attributes:
        links: (French place, English place) of nouns and adjectives.
        pairs: The word × construction pairs it is made of, named as in `grammar`.
    """

    english: tuple[str, ...] = ()
    french: tuple[str, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    pairs: frozenset[str] = frozenset()

    def then(self, *others: "Words") -> "Words":
        """These words followed by others."""
        whole = self
        for other in others:
            moved = tuple(
                (french_place + len(whole.french), english_place + len(whole.english))
                for french_place, english_place in other.links
            )
            whole = Words(
                whole.english + other.english,
                whole.french + other.french,
                whole.links + moved,
                whole.pairs | other.pairs,
            )
        return whole


def words(english_text: str, french_text: str, *pairs: str) -> Words:
    """Words without links from two texts."""
    return Words(tuple(english_text.split()), tuple(french_text.split()), (), frozenset(pairs))


@dataclass(frozen=True)
class Nominal:
    """A noun phrase with the features that verbs and predicates agree with."""

    words: Words
    head: GazetteNoun
    is_plural: bool = False

    @property
    def gender(self) -> Gender:
        """The head's."""
        return self.head.gender


_BY_KIND = {
    kind: tuple(noun for noun in NOUNS if noun.kind == kind)
    for kind in ("document", "body", "person", "topic")
}
_CHANCES: dict[Position, float] = {"before": 0.15, "outer": 0.12, "origin": 0.45, "type": 0.45}
# English, then French m, f: of one thing, of several.
_SINGULAR = [
    ("this", "ce", "cette"),
    ("our", "notre", "notre"),
    ("their", "leur", "leur"),
    ("each", "chaque", "chaque"),
    ("another", "un autre", "une autre"),
]
_PLURAL = [
    ("these", "ces", "ces"),
    ("our", "nos", "nos"),
    ("their", "leurs", "leurs"),
    ("several", "plusieurs", "plusieurs"),
    ("some", "certains", "certaines"),
    ("all the", "tous les", "toutes les"),
]


@cache
def adjectives_of(kind: Kind, position: Position) -> tuple[GazetteAdjective, ...]:
    """The adjectives of one place that fit a kind of noun."""
    return tuple(
        adjective
        for adjective in ADJECTIVES
        if adjective.position == position and (kind == "document" or not adjective.is_of_documents)
    )


def country(rng: Random) -> Nominal:
    """A country; French has an article, English none."""
    noun = rng.choice(COUNTRIES)
    article = "la" if noun.gender == "f" else "le"
    return Nominal(Words((noun.english,), (article, noun.french), ((1, 0),)), noun)


def noun_phrase(rng: Random, kinds: Iterable[Kind], depth: int = 0) -> Nominal:
    """A noun of one of the kinds with determiner, adjectives and maybe a topic."""
    kind: Kind = rng.choice(sorted(kinds))
    noun = rng.choice(_BY_KIND[kind])
    chosen = _adjectives(rng, kind)
    has_plural = not noun.is_uncountable and kind != "topic"
    is_plural = has_plural and rng.random() < 0.3
    is_name = _is_name(rng, noun, chosen, is_plural)
    core = _core(noun, chosen, is_plural, is_name)
    determiner = _determiner(rng, noun, core, is_plural, is_name)
    whole = determiner.then(core, _complement(rng, noun, depth))
    return Nominal(whole, noun, is_plural)


def _adjectives(rng: Random, kind: Kind) -> dict[Position, GazetteAdjective]:
    return {
        position: rng.choice(adjectives_of(kind, position))
        for position, chance in _CHANCES.items()
        if rng.random() < chance
    }


def _is_name(
    rng: Random, noun: GazetteNoun, chosen: dict[Position, GazetteAdjective], is_plural: bool
) -> bool:
    """Whether it is a body's name, which English capitalizes: the European Economic Area."""
    is_nameable = noun.kind == "body" and not is_plural and not {"before", "outer"} & set(chosen)
    return is_nameable and bool(chosen) and rng.random() < 0.7


def _core(
    noun: GazetteNoun, chosen: dict[Position, GazetteAdjective], is_plural: bool, is_name: bool
) -> Words:
    """Adjectives and noun: before, outer, origin, type, noun; before, noun, type, origin, outer."""
    stacked = [chosen[place] for place in ("before", "outer", "origin", "type") if place in chosen]
    source = [adjective.english for adjective in stacked]
    source.append(english.plural(noun.english) if is_plural else noun.english)
    if is_name:
        source = [word[0].upper() + word[1:] for word in source]
    target = [french.plural(noun.french) if is_plural else noun.french]
    origins = [len(stacked)]  # of each French word, in English
    for place, adjective in reversed(list(enumerate(stacked))):
        form = french.agree(adjective.french, noun.gender, is_plural)
        spot = 0 if adjective.position == "before" else len(target)
        target.insert(spot, form)
        origins.insert(spot, place)
    names = [adjective.english for adjective in stacked]
    pairs = {f"noun:{noun.english}|adjective:{name.lower()}" for name in names}
    if len(names) > 1:
        pairs.add(f"noun:{noun.english}|adjectives:{' '.join(names).lower()}")
    return Words(tuple(source), tuple(target), tuple(enumerate(origins)), frozenset(pairs))


def _determiner(
    rng: Random, noun: GazetteNoun, core: Words, is_plural: bool, is_name: bool
) -> Words:
    """The determiner; an uncountable noun's French article has no English word."""
    definite = ("les" if is_plural else "la" if noun.gender == "f" else "le",)
    if noun.is_uncountable:
        return Words((), definite)
    roll = rng.random()
    if is_name or roll < 0.55 or (noun.kind == "topic" and roll < 0.8):
        return Words(("the",), definite)
    if not is_plural and roll < 0.8:
        article = "une" if noun.gender == "f" else "un"
        return Words((english.article(core.english[0]),), (article,))
    if is_plural and roll < 0.75:
        source, target = rng.choice(NUMBERS)
        return words(source, target, f"noun:{noun.english}|number:{source}")
    source, masculine, feminine = rng.choice(_PLURAL if is_plural else _SINGULAR)
    target = feminine if noun.gender == "f" else masculine
    if noun.kind == "topic" and source in ("each", "another"):
        return Words(("the",), definite)
    return words(source, target, f"noun:{noun.english}|determiner:{source}")


def _complement(rng: Random, noun: GazetteNoun, depth: int) -> Words:
    """A document's topic or an officer's body; mostly empty."""
    roll = rng.random()
    if depth or noun.kind in ("body", "topic"):
        return Words()
    if noun.kind == "person":
        return _linked(rng, "of", "de", noun, frozenset({"body"}), depth) if roll < 0.3 else Words()
    if roll < 0.4:
        return _linked(rng, "on", "sur", noun, frozenset({"body", "topic", "document"}), depth)
    if roll < 0.5:
        return _linked(rng, "of", "de", noun, frozenset({"body", "person"}), depth)
    if roll < 0.58:
        first, second = country(rng), country(rng)
        if first.head != second.head:
            return words("between", "entre").then(first.words, words("and", "et"), second.words)
    if roll < 0.65:
        return words("with", "avec").then(country(rng).words)
    return Words()


def _linked(
    rng: Random, source: str, target: str, noun: GazetteNoun, kinds: Iterable[Kind], depth: int
) -> Words:
    inner = noun_phrase(rng, kinds, depth + 1)
    pair = f"noun:{noun.english}|{source}:{inner.head.english}"
    return words(source, target, pair).then(inner.words)
