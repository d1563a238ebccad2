"""Questions about passages of the example world, with the place of their answer.

A passage is a few sentences of similar facts, one of which is asked about; the others differ in a
role that the question names. Some questions have no answer there. Questions have three forms, and
training never combines some of them with some roles (`WITHHELD_FORMS`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal

from examples.bert.facts import (
    ASKED,
    Asked,
    Fact,
    Role,
    Spans,
    facts,
    passive_question,
    question,
    sentence_of,
    similar_facts,
    text_of,
    time_first_question,
    worded,
    wordings,
)
from examples.texts.grammar import Split

Form = Literal["plain", "time first", "passive"]
FORMS: dict[Form, Callable[[Fact, Asked], Spans]] = {
    "plain": question,
    "time first": time_first_question,
    "passive": passive_question,
}
WITHHELD_FORMS: frozenset[tuple[Form, Asked]] = frozenset(
    {("time first", "agent"), ("passive", "place")}
)
SENTENCES = 4
"""Of a passage, at most; their number does not depend on whether it has an answer."""
_UNANSWERED_SHARE = 0.25


@dataclass(frozen=True)
class AskedPassage:
    """A question, a passage, and the characters of the answer; both 0 where it has none."""

    question: str
    passage: str
    start: int
    end: int

    @property
    def answer(self) -> str:
        """The answer as it is written; empty where there is none."""
        return self.passage[self.start : self.end]


def asked_passages(
    split: Split, seed: int, *, has_withheld_forms: bool = False
) -> Iterator[AskedPassage]:
    """Endless questions about facts of one split; deterministic in the arguments.

    Args:
        has_withheld_forms: Whether questions have the forms that training lacks, or none of them.
    """
    rng = Random(f"passages {split} {seed} {has_withheld_forms}")
    forms: list[tuple[Form, Asked]] = [
        (form, asked)
        for form in FORMS
        for asked in ASKED
        if ((form, asked) in WITHHELD_FORMS) == has_withheld_forms
    ]
    for fact in facts(split, seed):
        form, asked = rng.choice(forms)
        if (form, asked) != ("time first", "time"):
            yield _passage(fact, sentence_of(FORMS[form](fact, asked)), asked, rng, split)


def _passage(fact: Fact, query: str, asked: Asked, rng: Random, split: Split) -> AskedPassage:
    is_answered = rng.random() >= _UNANSWERED_SHARE
    others = islice(similar_facts(fact, rng, split), rng.randint(1, SENTENCES) - is_answered)
    texts = [worded(other, rng) for other in others]
    if not is_answered:
        return AskedPassage(query, " ".join(texts), 0, 0)
    told, start, end = _told(fact, asked, rng)
    place = rng.randint(0, len(texts))
    before = sum(len(text) + 1 for text in texts[:place])
    texts.insert(place, told)
    return AskedPassage(query, " ".join(texts), before + start, before + end)


def _told(fact: Fact, asked: Asked, rng: Random) -> tuple[str, int, int]:
    """A wording of the fact, and the characters of one of its roles."""
    text, roles = text_of(rng.choice(wordings(fact)))
    role, value = _role(fact, asked)
    start, end = next(
        (start, end)
        for start, end, found in roles
        if found == role and text[start:end].lower() == value.lower()
    )
    return text, start, end


def _role(fact: Fact, asked: Asked) -> tuple[Role, str]:
    patient: Role = "PERSON" if fact.is_about_people else "THING"
    found: dict[Asked, tuple[Role, str]] = {
        "agent": ("PERSON", fact.agent),
        "patient": (patient, fact.patient),
        "place": ("PLACE", fact.place),
        "time": ("TIME", fact.time),
    }
    return found[asked]
