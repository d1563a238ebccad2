"""The sentences of a fact: its wordings, questions about it, and the roles of their words."""

from dataclasses import dataclass, replace
from random import Random

from examples.bert.facts import Asked, Fact, Role
from examples.texts import english


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
