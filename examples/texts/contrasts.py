"""Constructions in which Spanish and English differ.

Gustar, hay, tener with age and hunger where English has be, names, professions.
"""

from dataclasses import replace
from random import Random

from examples.texts import english, spanish
from examples.texts.clauses import Clause, complement, copular, place, weighted
from examples.texts.lexicon import CITIES, NUMBERS, VERBS
from examples.texts.phrases import (
    EVERY_KIND,
    NOTHING,
    Nominal,
    Phrase,
    name,
    noun_phrase,
    nouns_of,
    person,
    pronoun,
)
from examples.texts.questions import Sentence, maybe_question

_CLITICS = ("me", "te", "le", "nos", "les")
_STATES = [
    ("hambre", "hungry"),
    ("sed", "thirsty"),
    ("frío", "cold"),
    ("calor", "hot"),
    ("miedo", "afraid"),
    ("sueño", "sleepy"),
    ("razón", "right"),
    ("prisa", "in a hurry"),
]
_PROFESSIONS = [
    ("médico", "m", "doctor"),
    ("profesor", "m", "teacher"),
    ("profesora", "f", "teacher"),
    ("camarero", "m", "waiter"),
    ("cocinero", "m", "cook"),
    ("ingeniera", "f", "engineer"),
    ("abogado", "m", "lawyer"),
    ("enfermera", "f", "nurse"),
    ("pintor", "m", "painter"),
    ("pintora", "f", "painter"),
]
_LIKINGS = [("gustar", "gusta", ("like",)), ("encantar", "encanta", ("love",))]
# Determiners of a definite singular noun phrase.
_KNOWN = ("el", "la", "mi", "tu", "nuestro")


def existing(rng: Random) -> Sentence:
    """No hay pan en la mesa. There is no bread on the table."""
    tense = weighted(rng, {"present": 4, "imperfect": 1, "future": 1})
    is_negated = rng.random() < 0.25
    kinds = EVERY_KIND - {"subject", "sport", "world", "idea"}
    thing = noun_phrase(rng, kinds, "bare" if is_negated else "indefinite")
    verb = english.be(tense, thing.english_person)
    source = {"present": "hay", "imperfect": "había", "future": "habrá"}[tense]
    where = place(rng) if rng.random() < 0.7 else NOTHING
    pairs = thing.pairs | where.pairs | {f"noun:{thing.head}|{source}"}
    if is_negated:
        pairs |= {f"noun:{thing.head}|no {source}"}
        target, source = f"there {verb.plain} no", f"no {source}"
        return Sentence(replace(Phrase(source, target).then(thing).then(where), pairs=pairs))
    if rng.random() < 0.25:
        target = f"{verb.auxiliary} there {verb.lexical}".strip()
        question_phrase = replace(Phrase(source, target).then(thing).then(where), pairs=pairs)
        return Sentence(question_phrase, "yes/no")
    stated = Phrase(source, f"there {verb.plain}").then(thing).then(where)
    return Sentence(replace(stated, pairs=pairs))


def _liked(rng: Random) -> tuple[Phrase, bool]:
    """The thing liked, and whether it is plural; generic nouns have no article in English."""
    if rng.random() < 0.3:
        verb = rng.choice([verb for verb in VERBS if verb.frame != "object" or rng.random() < 0.5])
        what = complement(rng, verb)
        pairs = what.pairs | {f"verb:{verb.spanish}|liked"}
        doing = Phrase(verb.spanish, f"to {verb.english[0]}", pairs)
        return doing.then(what), False
    thing = noun_phrase(rng, EVERY_KIND - {"world", "subject", "sport", "idea"})
    is_general = thing.is_plural or any(
        noun.countability == "mass" and noun.spanish == thing.head for noun in nouns_of(EVERY_KIND)
    )
    is_definite = thing.spanish.split()[0] in ("el", "la", "los", "las")
    target = thing.english.removeprefix("the ") if is_general and is_definite else thing.english
    pairs = thing.pairs | {f"noun:{thing.head}|liked"}
    return Phrase(thing.spanish, target, pairs), thing.is_plural


def liking(rng: Random) -> Sentence:
    """A mi madre no le gusta el café. My mother does not like coffee."""
    subject = person(rng)
    while subject.kind != "person" or (subject.english == "you" and subject.is_plural):
        subject = person(rng)
    liked, is_plural = _liked(rng)
    topic, spanish_verb, forms = rng.choice(_LIKINGS)
    clause = Clause(
        replace(subject, spanish=_experiencer(subject)),
        spanish_verb + ("n" if is_plural else ""),
        english.verb_group(forms, "present", subject.english_person),
        "present",
        f"verb:{topic}",
        liked,
        clitic=_CLITICS[subject.spanish_person],
        is_negated=topic == "gustar" and rng.random() < 0.3,
    )
    if rng.random() < 0.8:
        return Sentence(clause.statement())
    return Sentence(clause.question(is_inverted=False), "yes/no")


def _experiencer(subject: Nominal) -> str:
    if not subject.spanish:
        return ""
    stressed = {"yo": "a mí", "tú": "a ti"}
    return stressed.get(subject.spanish, spanish.contract(f"a {subject.spanish}"))


def having(rng: Random) -> Sentence:
    """Ana tiene veinte años. Ana is twenty years old. Tengo hambre. I am hungry."""
    subject = person(rng)
    tense = weighted(rng, {"present": 3, "imperfect": 1, "future": 1})
    source, target = rng.choice(_STATES)
    state = Phrase(source, target, frozenset({f"state:{source}|{subject.head}"}))
    if rng.random() < 0.4:
        number, english_number = rng.choice(NUMBERS)
        if rng.random() < 0.4:
            number = english_number = str(rng.randint(2, 99))
        state = Phrase(f"{number} años", f"{english_number} years old")
    return maybe_question(rng, copular(rng, subject, "tener", tense, f"state:{source}", state))


def naming(rng: Random) -> Sentence:
    """Mi hermana se llama Elena. My sister's name is Elena."""
    if rng.random() < 0.4:
        source, target = rng.choice([("me llamo", "my name is"), ("te llamas", "your name is")])
        if rng.random() < 0.2:
            question_phrase = rng.choice([("cómo te llamas", "what is your name")])
            return Sentence(Phrase(*question_phrase), "wh")
        return Sentence(Phrase(source, target).then(name(rng)))
    bearer = noun_phrase(rng, frozenset({"person", "animal"}))
    while bearer.is_plural or bearer.spanish.split()[0] not in _KNOWN:
        bearer = noun_phrase(rng, frozenset({"person", "animal"}))
    whose = f"{english.genitive(bearer.english)} name"
    if rng.random() < 0.2:
        question = Phrase(f"cómo se llama {bearer.spanish}", f"what is {whose}", bearer.pairs)
        return Sentence(question, "wh")
    stated = Phrase(f"{bearer.spanish} se llama", f"{whose} is", bearer.pairs)
    return Sentence(stated.then(name(rng, bearer.gender)))


def introducing(rng: Random) -> Sentence:
    """Ana es una buena profesora. Somos de Madrid."""
    subject = name(rng) if rng.random() < 0.5 else pronoun(rng)
    city, translation = rng.choice(CITIES)
    what = Phrase(f"de {city}", f"from {translation}")
    if rng.random() < 0.6 and not subject.is_plural:
        what = _profession(rng, subject)
    tense = weighted(rng, {"present": 4, "imperfect": 1})
    topic = f"being:{what.spanish.split()[-1]}"
    clause = copular(rng, subject, "ser", tense, topic, what)
    return maybe_question(rng, clause, is_copula=True)


def _profession(rng: Random, subject: Nominal) -> Phrase:
    word, _, target = rng.choice([entry for entry in _PROFESSIONS if entry[1] == subject.gender])
    pairs = frozenset({f"noun:{word}|profession"})
    if rng.random() < 0.6:
        return Phrase(word, f"{english.article(target)} {target}", pairs)
    good = "una buena" if subject.gender == "f" else "un buen"
    return Phrase(f"{good} {word}", f"a good {target}", pairs | {f"noun:{word}|adjective:bueno"})
