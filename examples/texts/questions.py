"""Sentences, and questions with an interrogative: who, what, where, when, why, how many."""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from examples.texts import english, spanish
from examples.texts.clauses import Clause, action, being, description
from examples.texts.lexicon import VERBS
from examples.texts.phrases import NOTHING, Nominal, Phrase, noun_phrase, nouns_of, person

PLACEABLE = frozenset({"animal", "thing", "text", "clothes", "vehicle", "instrument"})


@dataclass(frozen=True)
class Sentence:
    """A complete sentence. `ending` selects its final marks and whether they are required.

    A `yes/no` question keeps its marks always: without them it may read as a statement.
    """

    phrase: Phrase
    ending: Literal["statement", "yes/no", "wh"] = "statement"


def maybe_question(rng: Random, clause: Clause, is_copula: bool = False) -> Sentence:
    """The clause, one time in five as a yes/no question."""
    if rng.random() < 0.8:
        return Sentence(clause.statement())
    return Sentence(clause.question(rng.random() < 0.5, is_copula=is_copula), "yes/no")


def asking(rng: Random) -> Sentence:
    """¿Dónde compra Ana pan? Where does Ana buy bread?"""
    clause = replace(action(rng), time=NOTHING)
    while clause.tense == "preterite":  # without a time, hablamos would be ambiguous
        clause = replace(action(rng), time=NOTHING)
    interrogative = rng.choice([("por qué", "why"), ("cuándo", "when"), ("dónde", "where")])
    if interrogative[1] == "where" and any(
        word in clause.complement.english for word in (" in ", " to ")
    ):
        interrogative = ("por qué", "why")
    return Sentence(clause.question(rng.random() < 0.6, Phrase(*interrogative)), "wh")


def asking_what(rng: Random) -> Sentence:
    """¿Qué come el gato? What does the cat eat?"""
    clause = replace(action(rng), time=NOTHING)
    while not (clause.complement.english and _takes_things(clause)):
        clause = replace(action(rng), time=NOTHING)
    clause = replace(clause, complement=NOTHING, clitic="")
    return Sentence(clause.question(True, Phrase("qué", "what")), "wh")


def _takes_things(clause: Clause) -> bool:
    lemma = clause.topic.removeprefix("verb:")
    kinds = next(verb.kinds for verb in VERBS if verb.spanish == lemma)
    is_clear = clause.tense != "preterite" or clause.subject.spanish_person != 3
    return is_clear and any(kind in kinds for kind in ("food", "drink", "text", "thing", "clothes"))


def asking_who(rng: Random) -> Sentence:
    """¿Quién no come pan? Who does not eat bread?"""
    who = Nominal("quién", "who", head="who")
    clause = action(rng, who) if rng.random() < 0.8 else description(rng, who)
    return Sentence(clause.statement(), "wh")


def asking_where(rng: Random) -> Sentence:
    """¿Dónde está la llave? Where is the key?"""
    thing = person(rng) if rng.random() < 0.3 else noun_phrase(rng, PLACEABLE)
    clause = being(rng, thing, NOTHING, "place")
    interrogative = rng.choice([("dónde", "where")] * 3 + [("cómo", "how")])
    return Sentence(replace(clause, is_negated=False).question(True, Phrase(*interrogative)), "wh")


def counting(rng: Random) -> Sentence:
    """¿Cuántos libros tiene Ana? How many books does Ana have?"""
    noun = rng.choice([noun for noun in nouns_of(PLACEABLE) if noun.countability == "count"])
    subject = person(rng)
    many = spanish.agree("cuánto", noun.gender, True)
    counted = Phrase(
        f"{many} {noun.spanish_plural or spanish.plural(noun.spanish)}",
        f"how many {noun.english_plural or english.plural(noun.english)}",
        frozenset({f"noun:{noun.spanish}|number:cuántos"}),
    )
    clause = Clause(
        subject,
        spanish.verb_group("tener", "present", subject.spanish_person),
        english.verb_group(("have", "had"), "present", subject.english_person),
        "present",
        "verb:tener",
    )
    return Sentence(clause.question(True, counted), "wh")
