"""Clauses in both languages at once, rendered from one set of parts as statements or questions.

English needs do-support and inversion where Spanish only moves the subject, so a clause keeps its
parts until its form is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from examples.texts import english, spanish
from examples.texts.lexicon import CITIES, VERBS, Verb
from examples.texts.phrases import (
    EVERY_KIND,
    NOTHING,
    SPEAKERS,
    Nominal,
    Phrase,
    adjectives_of,
    name,
    noun_phrase,
    nouns_of,
    person,
    when,
    with_pronoun,
)

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


_TENSES = {
    "present": 8,
    "preterite": 6,
    "future": 2,
    "near future": 2,
    "progressive": 2,
    "past progressive": 2,
    "perfect": 2,
    "can": 1,
    "must": 1,
    "want": 1,
    "have to": 1,
}
_COPULA_TENSES = {"present": 8, "imperfect": 3, "preterite": 1, "future": 2, "perfect": 1}
# Tenses whose yo form is also the él form, so the subject must be expressed.
_SYNCRETIC_TENSES = ("imperfect", "past progressive")
# Tenses built from forms that occur elsewhere, so that a verb can be withheld from one.
_COMPOSED_TENSES = ("near future", "past progressive", "can", "must", "want", "have to")
_STATIVE_VERBS = ("tener", "conocer", "necesitar", "querer", "amar", "recordar", "olvidar")
_ANIMAL_VERBS = ("comer", "beber", "ver", "dormir", "correr", "buscar", "nadar", "descansar")

_FREQUENCIES = [
    ("siempre", "always"),
    ("nunca", "never"),
    ("a menudo", "often"),
    ("a veces", "sometimes"),
    ("normalmente", "usually"),
    ("todavía", "still"),
]
_CLITICS = [("me", "me"), ("te", "you"), ("nos", "us")]
_DEGREES = [("muy", "very"), ("bastante", "quite"), ("demasiado", "too"), ("tan", "so")]


@dataclass(frozen=True)
class Clause:
    """The parts of a clause. `topic` is the word in the names of its polarity pairs."""

    subject: Nominal
    spanish_verb: str
    english_verb: english.VerbGroup
    tense: str
    topic: str
    complement: Phrase = NOTHING
    clitic: str = ""
    frequency: tuple[str, str] | None = None
    time: Phrase = NOTHING
    is_negated: bool = False

    @property
    def pairs(self) -> frozenset[str]:
        """The word × construction pairs of the clause, whatever its form."""
        own = {f"{self.topic}|{self.tense}"} if self.tense in _COMPOSED_TENSES else set()
        if self.is_negated:
            own |= {f"{self.topic}|negated", f"{self.topic}|negated {self.tense}"}
        if self.frequency:
            own.add(f"{self.topic}|{self.frequency[0]}")
        return self.subject.pairs | self.complement.pairs | self.time.pairs | own

    def statement(self) -> Phrase:
        """Subject, verb, complement."""
        subject, predicate = self.subject, self.predicate()
        return replace(Phrase(subject.spanish, subject.english).then(predicate), pairs=self.pairs)

    def predicate(self) -> Phrase:
        """The clause without its subject."""
        verb = self.english_verb.plain
        if self.is_negated:
            verb = self.english_verb.negated
        elif self.frequency:
            verb = self.english_verb.modified(self.frequency[1])
        source = Phrase(self._spanish_verb_words(), verb, self.pairs)
        return source.then(self.complement).then(self.time)

    def question(
        self, is_inverted: bool, interrogative: Phrase = NOTHING, is_copula: bool = False
    ) -> Phrase:
        """The clause as a question, after an `interrogative` if it is not empty.

        English always inverts. Spanish may; a copula's complement then comes before the subject.
        """
        if self.frequency:
            return replace(self, frequency=None).question(is_inverted, interrogative, is_copula)
        verb = self._spanish_verb_words()
        subject = self.subject.spanish
        ordered = [subject, verb, self.complement.spanish]
        if is_inverted:
            after = [self.complement.spanish, subject]
            ordered = [verb, *(after if is_copula else reversed(after))]
        source = " ".join(
            word for word in [interrogative.spanish, *ordered, self.time.spanish] if word
        )
        target = Phrase("", interrogative.english).then(Phrase("", self.english_verb.auxiliary))
        target = target.then(Phrase("", self.subject.english))
        if self.is_negated:
            target = target.then(Phrase("", "not"))
        target = target.then(Phrase("", self.english_verb.lexical))
        target = target.then(self.complement).then(self.time)
        own = {f"{self.topic}|question", f"{self.topic}|question {self.tense}"}
        return Phrase(source, target.english, self.pairs | interrogative.pairs | own)

    def _spanish_verb_words(self) -> str:
        words = ["no" if self.is_negated else "", self.clitic, self.spanish_verb]
        if self.frequency:
            words.insert(0, self.frequency[0])
        return " ".join(word for word in words if word)


def weighted(rng: Random, weights: dict[str, int]) -> str:
    """A key drawn with probability proportional to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def place(rng: Random) -> Phrase:
    """Where something happens: en la playa, on the beach."""
    if rng.random() < 0.2:
        source, target = rng.choice(CITIES)
        return Phrase(f"en {source}", f"in {target}")
    where = noun_phrase(rng, frozenset({"place"}))
    return Phrase(f"en {where.spanish}", f"{where.preposition} {where.english}", where.pairs)


def _circumstance(rng: Random) -> Phrase:
    """A place, a companion, or mostly nothing."""
    roll = rng.random()
    if roll < 0.15:
        return place(rng)
    if roll < 0.22:
        companion = noun_phrase(rng, SPEAKERS) if rng.random() < 0.5 else name(rng)
        source = f"con {companion.spanish}"
        return Phrase(source, f"with {companion.english}", companion.pairs)
    return NOTHING


def complement(rng: Random, verb: Verb) -> Phrase:
    """A verb's complement: its object, its goal, or a place."""
    if verb.frame == "alone":
        return place(rng) if rng.random() < 0.5 else NOTHING
    kinds = frozenset(verb.kinds)
    if verb.frame == "goal" and rng.random() < 0.3:
        source, target = rng.choice(CITIES)
        return Phrase(f"a {source}", f"to {target}")
    is_bare = verb.frame == "name" or "subject" in kinds
    thing = noun_phrase(rng, kinds, "bare" if is_bare else "object")
    link = verb.spanish_link
    if thing.kind == "person" and verb.spanish != "tener":
        link = "a"
    pairs = thing.pairs | {f"verb:{verb.spanish}|object:{thing.head}"}
    source = spanish.contract(f"{link} {thing.spanish}".strip())
    return Phrase(source, f"{verb.english_link} {thing.english}".strip(), pairs)


def _tense(rng: Random, verb: Verb) -> str:
    tense = weighted(rng, _TENSES)
    is_odd = (tense == "want" and verb.spanish == "querer") or (
        "progressive" in tense and verb.spanish in _STATIVE_VERBS
    )
    return "present" if is_odd else tense


def action(rng: Random, subject: Nominal | None = None) -> Clause:
    """A clause of an action: subject, verb and complement."""
    verb = rng.choice(VERBS)
    if subject is None:
        subject = person(rng)
        if rng.random() < 0.12:
            verb = rng.choice([verb for verb in VERBS if verb.spanish in _ANIMAL_VERBS])
            subject = noun_phrase(rng, frozenset({"animal"}))
    tense = _tense(rng, verb)
    said_with, clitic = complement(rng, verb), ""
    takes_person = "person" in verb.kinds and verb.spanish != "tener"
    if takes_person and subject.spanish_person in (2, 4) and rng.random() < 0.25:
        clitic, translation = rng.choice(_CLITICS)
        said_with = Phrase("", translation, frozenset({f"verb:{verb.spanish}|{clitic}"}))
    clause = Clause(
        with_pronoun(subject) if tense in _SYNCRETIC_TENSES else subject,
        spanish.verb_group(verb.spanish, tense, subject.spanish_person),
        english.verb_group(verb.english, tense, subject.english_person),
        tense,
        f"verb:{verb.spanish}",
        said_with.then(_circumstance(rng)) if verb.frame == "object" else said_with,
        clitic,
    )
    return _colour(rng, clause, verb)


def _colour(rng: Random, clause: Clause, verb: Verb) -> Clause:
    """The clause with a random time, frequency or negation."""
    person_number = clause.subject.spanish_person
    is_past = clause.tense == "preterite"
    present = spanish.conjugate(verb.spanish, "present", person_number)
    if (is_past and clause.spanish_verb == present) or rng.random() < 0.2:
        # hablamos is both present and preterite; only a time resolves it.
        clause = replace(clause, time=when(rng, clause.tense))
    if rng.random() < 0.25:
        return replace(clause, is_negated=True)
    if clause.tense == "present" and rng.random() < 0.12:
        return replace(clause, frequency=rng.choice(_FREQUENCIES))
    return clause


def description(rng: Random, subject: Nominal | None = None) -> Clause:
    """A predicate adjective: la puerta no está abierta."""
    if subject is None:
        kinds = EVERY_KIND - {"subject", "sport"}
        kinds = frozenset({"world", "idea", "means"}) if rng.random() < 0.15 else kinds
        subject = person(rng) if rng.random() < 0.4 else noun_phrase(rng, kinds)
    adjective = rng.choice(adjectives_of(subject.kind, is_attributive=False))
    tense = weighted(rng, _COPULA_TENSES)
    form = spanish.agree(adjective.spanish, subject.gender, subject.is_plural)
    pairs = {f"noun:{subject.head}|predicate:{adjective.spanish}"}
    predicate = Phrase(form, adjective.english)
    if rng.random() < 0.25 and adjective.english not in ("enough", "perfect", "open", "closed"):
        predicate = Phrase(*rng.choice(_DEGREES)).then(predicate)
    return Clause(
        with_pronoun(subject) if tense in _SYNCRETIC_TENSES else subject,
        spanish.verb_group(adjective.copula, tense, subject.spanish_person),
        english.be(tense, subject.english_person),
        tense,
        f"adjective:{adjective.spanish}",
        replace(predicate, pairs=frozenset(pairs)),
        is_negated=rng.random() < 0.3,
    )


def possession(rng: Random) -> Clause:
    """A place has something: este restaurante tiene buena comida."""
    subject = noun_phrase(rng, frozenset({"place"}))
    thing = noun_phrase(rng, frozenset({"food", "drink", "opening", "thing", "text"}), "object")
    tense = rng.choice(("present", "present", "imperfect", "future"))
    pair = f"noun:{subject.head}|has:{thing.head}"
    return Clause(
        subject,
        spanish.verb_group("tener", tense, subject.spanish_person),
        english.verb_group(("have", "had"), tense, subject.english_person),
        tense,
        f"has:{subject.head}",
        replace(Phrase(thing.spanish, thing.english), pairs=thing.pairs | {pair}),
        is_negated=rng.random() < 0.3,
    )


def being(rng: Random, subject: Nominal, where: Phrase, pair: str) -> Clause:
    """A clause of estar."""
    tense = weighted(rng, {"present": 5, "imperfect": 2, "future": 1})
    return copular(rng, subject, "estar", tense, f"noun:{subject.head}|{pair}", where)


def copular(
    rng: Random, subject: Nominal, verb: str, tense: str, topic: str, what: Phrase
) -> Clause:
    """A clause that has "be" in English, one time in four negated.

    Args:
        verb: What Spanish has for it.
    """
    return Clause(
        with_pronoun(subject) if tense == "imperfect" else subject,
        spanish.verb_group(verb, tense, subject.spanish_person),
        english.be(tense, subject.english_person),
        tense,
        topic,
        what,
        is_negated=rng.random() < 0.25,
    )
