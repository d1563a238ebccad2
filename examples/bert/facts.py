"""Facts of the example world, with near misses, their wordings and questions.

A fact is one event: a person, an action, a thing or a second person, a place, a time. Its wordings
are paraphrases of each other; a question asks for one role and gives the others; a near miss
differs in one role, or swaps the two people, and so shares almost every word. The same facts are
the tagging, ranking and embedding data of the examples.

People and places are partly made-up words, each of them either, so that only the sentence decides.
Three disjoint splits as in `grammar`: `train`; `held_out`, whose made-up words are in no training
sentence; `compositional`, of ordinary words with at least one withheld pair of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from examples.texts import english
from examples.texts.bindings import made_up
from examples.texts.grammar import PAIR_SHARE, Split, bucket
from examples.texts.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, VERBS, Noun, Verb
from examples.texts.phrases import when

Role = Literal["PERSON", "ACTION", "THING", "PLACE", "TIME"]
ROLES: tuple[Role, ...] = ("PERSON", "ACTION", "THING", "PLACE", "TIME")
Asked = Literal["agent", "patient", "place", "time"]
ASKED: tuple[Asked, ...] = ("agent", "patient", "place", "time")

_MADE_UP_SHARE = 0.5
_ADJECTIVE_SHARE = 0.5
_PEOPLE_SHARE = 0.3  # of facts about two people
_THING_ACTIONS = """buy sell cook cut prepare order bring drink read write send receive lose find
    use break paint build draw clean wash forget carry""".split()
_PEOPLE_ACTIONS = "help,call,visit,see,wait for,listen to".split(",")
_NAMES = tuple(name for name, _ in NAMES)
_CITIES = tuple(name for _, name in CITIES)
_PLACES = tuple(noun for noun in NOUNS if noun.kind == "place" and noun.english != "room")


def _verbs(bases: list[str]) -> tuple[Verb, ...]:
    found = [verb for verb in VERBS if verb.english[0] in bases and verb.frame == "object"]
    return tuple({verb.english[0]: verb for verb in found}.values())


_TAKING_THINGS = _verbs(_THING_ACTIONS)
_TAKING_PEOPLE = _verbs(_PEOPLE_ACTIONS)


@dataclass(frozen=True)
class Fact:
    """One event. The patient is a second person, or a thing of the noun `head`."""

    agent: str
    verb: Verb
    patient: str
    head: str
    is_plural: bool
    place: str
    preposition: str
    time: str

    @property
    def is_about_people(self) -> bool:
        """Whether the patient is a person, so that the two roles can be swapped."""
        return not self.head

    @property
    def pairs(self) -> tuple[str, ...]:
        """The pairs of words that decide the split."""
        verb = self.verb.english[0]
        patient = self.head or self.patient
        return f"{self.agent}|{verb}", f"{verb}|{patient}", f"{self.place}|{verb}"

    @property
    def is_withheld(self) -> bool:
        """Whether one of the pairs is kept out of training."""
        return any(bucket(pair, PAIR_SHARE) == 0 for pair in self.pairs)

    def swapped(self) -> Fact:
        """The event with its two people in each other's role."""
        return replace(self, agent=self.patient, patient=self.agent)


def facts(split: Split, seed: int = 0) -> Iterator[Fact]:
    """Endless facts of one split; deterministic in the arguments."""
    rng = Random(f"facts {split} {seed}")
    while True:
        fact = _draw(rng, split)
        if fact.is_withheld == (split == "compositional") and fact.agent != fact.patient:
            yield fact


def _draw(rng: Random, split: Split) -> Fact:
    if rng.random() < _PEOPLE_SHARE:
        verb, patient, head, is_plural = rng.choice(_TAKING_PEOPLE), _person(rng, split), "", False
    else:
        verb = rng.choice(_TAKING_THINGS)
        noun = rng.choice([noun for noun in NOUNS if noun.kind in verb.kinds])
        head, is_plural = noun.english, noun.countability == "count" and rng.random() < 0.25
        patient = _thing(rng, noun, is_plural)
    place, preposition = _place(rng, split)
    time = when(rng, "preterite").english
    return Fact(_person(rng, split), verb, patient, head, is_plural, place, preposition, time)


def _person(rng: Random, split: Split) -> str:
    return _made_up(rng, split) or rng.choice(_NAMES)


def _made_up(rng: Random, split: Split) -> str:
    """A made-up name, or none: held-out facts have no other names, compositional ones none."""
    share = {"train": _MADE_UP_SHARE, "held_out": 1.0, "compositional": 0.0}[split]
    if rng.random() >= share:
        return ""
    return made_up(rng, "held_out" if split == "held_out" else "train").capitalize()


def _place(rng: Random, split: Split) -> tuple[str, str]:
    """A city, or a common noun with its article; and its preposition."""
    if rng.random() < 0.5:
        return _made_up(rng, split) or rng.choice(_CITIES), "in"
    noun = rng.choice(_PLACES)
    return f"the {noun.english}", noun.preposition


def _thing(rng: Random, noun: Noun, is_plural: bool) -> str:
    """A noun with a determiner, and half of the time with an adjective."""
    words = noun.english
    if is_plural:
        words = noun.english_plural or english.plural(noun.english)
    fitting = [one for one in ADJECTIVES if noun.kind in one.kinds and one.is_attributive]
    if fitting and rng.random() < _ADJECTIVE_SHARE:
        words = f"{rng.choice(fitting).english} {words}"
    if noun.countability == "mass":
        return f"the {words}"
    if is_plural:
        return f"{rng.choice(['two', 'three', 'some', 'the'])} {words}"
    return f"{rng.choice([english.article(words), 'the'])} {words}"


def near_misses(fact: Fact, rng: Random, split: Split, asked: Asked | None = None) -> list[Fact]:
    """Facts that differ in one role, in random order; never in the role that is asked for."""
    other = _draw(rng, split)
    while other.is_about_people != fact.is_about_people or not _differ(fact, other):
        other = _draw(rng, split)
    patient = {name: getattr(other, name) for name in ("patient", "head", "is_plural")}
    changed = {
        "agent": replace(fact, agent=other.agent),
        "patient": replace(fact, **patient) if _fits(fact.verb, other) else None,
        "verb": replace(fact, verb=other.verb) if _fits(other.verb, fact) else None,
        "place": replace(fact, place=other.place, preposition=other.preposition),
        "time": replace(fact, time=other.time),
        "roles": fact.swapped() if fact.is_about_people else None,
    }
    found = [near for role, near in changed.items() if near is not None and role != asked]
    if split == "train":
        found = [near for near in found if not near.is_withheld]
    rng.shuffle(found)
    return found


def similar_facts(
    fact: Fact, rng: Random, split: Split, asked: Asked | None = None
) -> Iterator[Fact]:
    """Endless facts that share some roles with this one and differ in two or more.

    None of them differs in the role that is asked for, except where two people are swapped.
    """
    while True:
        other = fact
        for _ in range(rng.randint(2, 4)):
            other = rng.choice(near_misses(other, rng, split, asked) or [other])
        if _differing(fact, other) >= 2:
            yield other


def _differing(fact: Fact, other: Fact) -> int:
    """Number of roles that differ."""
    return sum(
        getattr(fact, role) != getattr(other, role)
        for role in ("agent", "patient", "verb", "place", "time")
    )


def _differ(fact: Fact, other: Fact) -> bool:
    """Whether every role differs."""
    people = {fact.agent, fact.patient} & {other.agent, other.patient}
    same = (fact.verb == other.verb, fact.place == other.place, fact.time == other.time)
    return not people and not any(same) and (not fact.head or fact.head != other.head)


def _fits(verb: Verb, fact: Fact) -> bool:
    """Whether the verb takes the fact's patient."""
    if fact.is_about_people:
        return "person" in verb.kinds
    return any(noun.english == fact.head and noun.kind in verb.kinds for noun in NOUNS)


@dataclass(frozen=True)
class Span:
    """Some words of a sentence and their role, None outside every role."""

    text: str
    role: Role | None = None


Spans = tuple[Span, ...]
Roles = list[tuple[int, int, Role]]
"""(start, end, role), in characters of a text."""


def _agent(fact: Fact) -> Span:
    return Span(fact.agent, "PERSON")


def _patient(fact: Fact) -> Span:
    return Span(fact.patient, "PERSON" if fact.is_about_people else "THING")


def _acted(fact: Fact) -> Span:
    return Span(english.past(fact.verb.english), "ACTION")


def _suffered(fact: Fact) -> tuple[Span, Span]:
    """The passive: was bought."""
    be = "were" if fact.is_plural else "was"
    return Span(be), Span(english.participle(fact.verb.english), "ACTION")


def _where(fact: Fact) -> tuple[Span, Span]:
    return Span(fact.preposition), Span(fact.place, "PLACE")


def _when(fact: Fact) -> Span:
    return Span(fact.time, "TIME")


_COMMA, _BY, _STOP, _MARK = Span(","), Span("by"), Span("."), Span("?")


def _plain(fact: Fact) -> Spans:
    return _agent(fact), _acted(fact), _patient(fact), *_where(fact), _when(fact), _STOP


def _time_first(fact: Fact) -> Spans:
    clause = (_agent(fact), _acted(fact), _patient(fact), *_where(fact))
    return _when(fact), _COMMA, *clause, _STOP


def _place_first(fact: Fact) -> Spans:
    return *_where(fact), _COMMA, _agent(fact), _acted(fact), _patient(fact), _when(fact), _STOP


def _passive(fact: Fact) -> Spans:
    clause = (_patient(fact), *_suffered(fact), _BY, _agent(fact))
    return *clause, *_where(fact), _when(fact), _STOP


def _passive_time_first(fact: Fact) -> Spans:
    clause = (_patient(fact), *_suffered(fact), *_where(fact), _BY, _agent(fact))
    return _when(fact), _COMMA, *clause, _STOP


def _cleft(fact: Fact) -> Spans:
    clause = (_acted(fact), _patient(fact), *_where(fact), _when(fact))
    return Span("it was"), _agent(fact), Span("who"), *clause, _STOP


_WORDINGS = (_plain, _time_first, _place_first, _passive, _passive_time_first, _cleft)


def wordings(fact: Fact) -> tuple[Spans, ...]:
    """Every wording of the fact."""
    return tuple(word(fact) for word in _WORDINGS)


def question(fact: Fact, asked: Asked) -> Spans:
    """A question for one role of the fact, which names all the others."""
    did, base = Span("did"), Span(fact.verb.english[0], "ACTION")
    where, time = _where(fact), _when(fact)
    who = "who" if fact.is_about_people else "what"
    return {
        "agent": (Span("who"), _acted(fact), _patient(fact), *where, time, _MARK),
        "patient": (Span(who), did, _agent(fact), base, *where, time, _MARK),
        "place": (Span("where"), did, _agent(fact), base, _patient(fact), time, _MARK),
        "time": (Span("when"), did, _agent(fact), base, _patient(fact), *where, _MARK),
    }[asked]


def time_first_question(fact: Fact, asked: Asked) -> Spans:
    """The question with its time in front; of a time, the question as it is."""
    if asked == "time":
        return question(fact, asked)
    *clause, mark = question(replace(fact, time=""), asked)
    return _when(fact), _COMMA, *(span for span in clause if span.text), mark


def passive_question(fact: Fact, asked: Asked) -> Spans:
    """The question in the passive voice."""
    who = "who" if fact.is_about_people else "what"
    be, did = _suffered(fact)
    where, time = _where(fact), _when(fact)
    return {
        "agent": (Span("who"), be, _patient(fact), did, _BY, *where, time, _MARK),
        "patient": (Span(who), Span("was"), did, _BY, _agent(fact), *where, time, _MARK),
        "place": (Span("where"), be, _patient(fact), did, _BY, _agent(fact), time, _MARK),
        "time": (Span("when"), be, _patient(fact), did, _BY, _agent(fact), *where, _MARK),
    }[asked]


def text_of(spans: Spans) -> tuple[str, Roles]:
    """The sentence as it is written, and its roles."""
    text = ""
    found: Roles = []
    for span in spans:
        gap = "" if not text or span.text in ",.?" else " "
        start = len(text) + len(gap)
        words = span.text if text else span.text[0].upper() + span.text[1:]
        text += gap + words
        if span.role:
            found.append((start, len(text), span.role))
    return text, found


def sentence_of(spans: Spans) -> str:
    """The sentence alone."""
    return text_of(spans)[0]


def worded(fact: Fact, rng: Random) -> str:
    """The fact in one of its wordings."""
    return sentence_of(rng.choice(wordings(fact)))
