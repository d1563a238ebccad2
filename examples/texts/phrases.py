"""Noun phrases in both languages at once: determiners, numbers, adjectives, owners, subjects.

Every phrase carries its *pairs*: the word × construction combinations it is made of, named like
`noun:libro|adjective:rojo`. They determine the splits of `grammar`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Literal

from examples.texts import english, spanish
from examples.texts.lexicon import ADJECTIVES, NAMES, NOUNS, NUMBERS, Adjective, Gender, Noun

_DAYS = """lunes Monday; martes Tuesday; miércoles Wednesday; jueves Thursday; viernes Friday;
    sábado Saturday; domingo Sunday"""
_MONTHS = """enero January; abril April; mayo May; junio June; julio July; agosto August;
    octubre October; diciembre December"""
_DAY_NAMES = [entry.split() for entry in _DAYS.split(";")]
_MONTH_NAMES = [entry.split() for entry in _MONTHS.split(";")]

_PAST = [
    ("ayer", "yesterday"),
    ("anoche", "last night"),
    ("la semana pasada", "last week"),
    ("el año pasado", "last year"),
    ("hace dos días", "two days ago"),
    ("esta mañana", "this morning"),
    *((f"el {day} pasado", f"last {translation}") for day, translation in _DAY_NAMES),
]
_FUTURE = [
    ("mañana", "tomorrow"),
    ("pronto", "soon"),
    ("esta noche", "tonight"),
    ("la próxima semana", "next week"),
    ("el próximo año", "next year"),
    *((f"el {day}", f"on {translation}") for day, translation in _DAY_NAMES),
    *((f"en {month}", f"in {translation}") for month, translation in _MONTH_NAMES),
]
_PRESENT = [
    ("hoy", "today"),
    ("todos los días", "every day"),
    ("cada mañana", "every morning"),
    ("por la tarde", "in the afternoon"),
    ("por la noche", "at night"),
    ("en verano", "in summer"),
    ("en invierno", "in winter"),
]
_NOW = [("ahora", "now"), ("en este momento", "at the moment"), ("hoy", "today")]
_UNTIL_NOW = [("hoy", "today"), ("esta semana", "this week"), ("muchas veces", "many times")]
_TIMES = {
    "present": _PRESENT,
    "preterite": _PAST,
    "past progressive": _PAST,
    "imperfect": _PAST,
    "progressive": _NOW,
    "perfect": _UNTIL_NOW,
}


def when(rng: Random, tense: str) -> Phrase:
    """When, in words that suit the tense."""
    source, target = rng.choice(_TIMES.get(tense, _FUTURE))
    return Phrase(source, target)


EVERY_KIND = frozenset(noun.kind for noun in NOUNS)
SPEAKERS = frozenset({"person"})

# What may stand before a noun: anything; anything, or nothing where it is uncountable; what
# can follow "there is"; nothing at all.
Mode = Literal["any", "object", "indefinite", "bare"]


@dataclass(frozen=True)
class Phrase:
    """The same thing in both languages, and the pairs it is made of."""

    spanish: str
    english: str
    pairs: frozenset[str] = frozenset()

    def then(self, other: Phrase) -> Phrase:
        """This phrase followed by another, without a space if one is empty."""
        return Phrase(
            f"{self.spanish} {other.spanish}".strip(),
            f"{self.english} {other.english}".strip(),
            self.pairs | other.pairs,
        )


NOTHING = Phrase("", "")


@dataclass(frozen=True)
class Nominal(Phrase):
    """A noun phrase with the features that a verb or an adjective agrees with."""

    spanish_person: int = 2
    english_person: int = 2
    gender: Gender = "m"
    is_plural: bool = False
    head: str = ""
    kind: str = "person"
    preposition: str = "in"
    pronoun: str = ""  # the overt subject, for verb forms that require one


@dataclass(frozen=True)
class _Determiner:
    """A word before the noun: its four Spanish forms (m, f, and their plurals), two English."""

    spanish: tuple[str, str, str, str]
    english: tuple[str, str]

    def render(self, gender: Gender, is_plural: bool) -> tuple[str, str]:
        """The forms for a noun of this gender and number."""
        return self.spanish[2 * is_plural + (gender == "f")], self.english[is_plural]


def _determiner(spanish_forms: str, singular: str, plural: str | None = None) -> _Determiner:
    masculine, feminine, masculines, feminines = spanish_forms.split()
    forms = (masculine, feminine, masculines, feminines)
    return _Determiner(forms, (singular, plural or singular))


_THE = _determiner("el la los las", "the")
_A = _determiner("un una unos unas", "a", "some")
_DEFINITE = (
    _determiner("este esta estos estas", "this", "these"),
    _determiner("ese esa esos esas", "that", "those"),
    _determiner("aquel aquella aquellos aquellas", "that", "those"),
    _determiner("mi mi mis mis", "my"),
    _determiner("tu tu tus tus", "your"),
    _determiner("nuestro nuestra nuestros nuestras", "our"),
)
_SINGULAR = (
    _determiner("otro otra otros otras", "another", "other"),
    _determiner("cada cada cada cada", "each"),
)
_PLURAL = (
    _determiner("muchos muchas muchos muchas", "many"),
    _determiner("pocos pocas pocos pocas", "few"),
    _determiner("algunos algunas algunos algunas", "some"),
    _determiner("varios varias varios varias", "several"),
)
_MUCH = _determiner("mucho mucha muchos muchas", "a lot of")

# (yo, tú, ...): Spanish, English, Spanish person, English person, gender, plural, droppable.
_PRONOUNS: tuple[tuple[str, str, int, int, Gender, bool, bool], ...] = (
    ("yo", "I", 0, 0, "m", False, True),
    ("yo", "I", 0, 0, "f", False, True),
    ("tú", "you", 1, 1, "m", False, True),
    ("tú", "you", 1, 1, "f", False, True),
    ("él", "he", 2, 2, "m", False, False),
    ("ella", "she", 2, 2, "f", False, False),
    ("nosotros", "we", 3, 1, "m", True, True),
    ("ellos", "they", 4, 1, "m", True, False),
    ("ellas", "they", 4, 1, "f", True, False),
    ("ustedes", "you", 4, 1, "m", True, False),
)


@cache
def nouns_of(kinds: frozenset[str]) -> tuple[Noun, ...]:
    """The nouns of any of these kinds."""
    return tuple(noun for noun in NOUNS if noun.kind in kinds)


@cache
def adjectives_of(kind: str, is_attributive: bool) -> tuple[Adjective, ...]:
    """The adjectives that fit a kind, either beside the noun or as its predicate."""
    return tuple(
        adjective
        for adjective in ADJECTIVES
        if kind in adjective.kinds and (adjective.is_attributive or not is_attributive)
    )


def _count(rng: Random) -> tuple[str, str, str]:
    """A number above one in Spanish and English, and its name in pairs."""
    if rng.random() < 0.35:
        digits = str(rng.randint(2, 99))
        return digits, digits, "digits"
    word, translation = rng.choice(NUMBERS)
    return word, translation, word


def _determine(rng: Random, noun: Noun, is_plural: bool, mode: Mode) -> tuple[str, str, str]:
    """A determiner in Spanish and English, and its pair; English `a` becomes `an` later."""
    roll = rng.random()
    is_mass = noun.countability == "mass"
    if mode == "bare" or (is_mass and mode != "any" and roll < 0.3):
        return "", "", ""
    if is_plural and roll < 0.3:
        count, number, counted = _count(rng)
        return count, number, f"noun:{noun.spanish}|number:{counted}"
    if roll < 0.55 and mode != "indefinite":
        return *_THE.render(noun.gender, is_plural), ""
    if noun.countability == "unique" or (roll < 0.75 and mode != "indefinite"):
        chosen = rng.choice(_DEFINITE)
    elif is_mass:
        chosen = _MUCH
    elif is_plural:
        if roll < 0.82 and mode != "indefinite":
            article, _ = _THE.render(noun.gender, True)
            return f"{spanish.agree('todo', noun.gender, True)} {article}", "all the", ""
        chosen = rng.choice(_PLURAL)
    elif roll < 0.92:
        return *_A.render(noun.gender, False), ""
    else:
        chosen = rng.choice(_SINGULAR)
    return (
        *chosen.render(noun.gender, is_plural),
        f"noun:{noun.spanish}|determiner:{chosen.spanish[0]}",
    )


def _attribute(rng: Random, noun: Noun, is_plural: bool) -> tuple[str, str, str, str]:
    """An adjective beside its noun: Spanish before, Spanish after, English before, its pair."""
    adjective = rng.choice(adjectives_of(noun.kind, is_attributive=True))
    pair = f"noun:{noun.spanish}|adjective:{adjective.spanish}"
    form = spanish.agree(adjective.spanish, noun.gender, is_plural)
    if adjective.spanish in ("bueno", "malo", "nuevo") and rng.random() < 0.6:
        is_clipped = adjective.spanish != "nuevo" and noun.gender == "m" and not is_plural
        return form[:-1] if is_clipped else form, "", adjective.english, pair
    if adjective.spanish == "grande" and rng.random() < 0.4:
        # Before its noun, grande means great.
        return "grandes" if is_plural else "gran", "", "great", pair + "|before"
    return "", form, adjective.english, pair


def noun_phrase(rng: Random, kinds: frozenset[str], mode: Mode = "any") -> Nominal:
    """A noun of one of the kinds with determiner, perhaps an adjective, perhaps an owner."""
    noun = rng.choice(nouns_of(kinds))
    is_plural = noun.countability == "count" and rng.random() < 0.35
    source_noun = noun.spanish
    target_noun = noun.english
    if is_plural:
        source_noun = noun.spanish_plural or spanish.plural(noun.spanish)
        target_noun = noun.english_plural or english.plural(noun.english)
    before = after = attribute = pair = owner = ""
    if rng.random() < 0.35 and adjectives_of(noun.kind, is_attributive=True):
        before, after, attribute, pair = _attribute(rng, noun, is_plural)
    source_determiner, target_determiner, determined = _determine(rng, noun, is_plural, mode)
    pairs = {pair, determined}
    if target_determiner == "the" and noun.countability != "unique" and rng.random() < 0.2:
        owned = _owner(rng)
        owner, target_determiner = f"de {owned.spanish}", english.genitive(owned.english)
        pairs |= owned.pairs
    if noun.spanish == "agua" and source_determiner in ("la", "una") and not before:
        source_determiner = {"la": "el", "una": "un"}[source_determiner]
    if target_determiner == "a":
        target_determiner = english.article(attribute or target_noun)
    return Nominal(
        spanish.contract(_join(source_determiner, before, source_noun, after, owner)),
        _join(target_determiner, attribute, target_noun),
        frozenset(pairs - {""}),
        spanish_person=4 if is_plural else 2,
        english_person=1 if is_plural else 2,
        gender=noun.gender,
        is_plural=is_plural,
        head=noun.spanish,
        kind=noun.kind,
        preposition=noun.preposition,
    )


def _owner(rng: Random) -> Phrase:
    if rng.random() < 0.5:
        return name(rng)
    noun = rng.choice(nouns_of(SPEAKERS))
    source, target, pair = "mi", "my", f"noun:{noun.spanish}|determiner:mi"
    if rng.random() < 0.5:
        source, target = _THE.render(noun.gender, False)
        pair = f"noun:{noun.spanish}|owner"
    return Phrase(f"{source} {noun.spanish}", f"{target} {noun.english}", frozenset({pair}))


def name(rng: Random, genders: str = "mf") -> Nominal:
    """A person's name."""
    given, gender = rng.choice([entry for entry in NAMES if entry[1] in genders])
    return Nominal(given, given, gender=gender, head=given)


def couple(rng: Random) -> Nominal:
    """Two people by name, joined by and."""
    (first, one), (second, other) = rng.sample(NAMES, 2)
    return Nominal(
        f"{first} y {second}",
        f"{first} and {second}",
        spanish_person=4,
        english_person=1,
        gender="f" if (one, other) == ("f", "f") else "m",
        is_plural=True,
        head="couple",
    )


def pronoun(rng: Random) -> Nominal:
    """A personal pronoun, mostly dropped in Spanish where the verb form marks the person."""
    source, target, person, english_person, gender, is_plural, is_droppable = rng.choice(_PRONOUNS)
    is_dropped = is_droppable and rng.random() < 0.7
    return Nominal(
        "" if is_dropped else source,
        target,
        spanish_person=person,
        english_person=english_person,
        gender=gender,
        is_plural=is_plural,
        head=target,
        pronoun=source,
    )


def person(rng: Random) -> Nominal:
    """A subject that is a person."""
    roll = rng.random()
    if roll < 0.35:
        return pronoun(rng)
    if roll < 0.55:
        return name(rng)
    if roll < 0.6:
        return couple(rng)
    return noun_phrase(rng, SPEAKERS)


def with_pronoun(subject: Nominal) -> Nominal:
    """The subject with its pronoun expressed, even where Spanish would drop it."""
    return subject if subject.spanish else replace(subject, spanish=subject.pronoun)


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)
