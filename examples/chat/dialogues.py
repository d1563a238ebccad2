"""Conversations whose answers depend on earlier turns and on the system message.

The user tells facts (a name, a city, the colour of a car) and asks for them some turns later; what
was not told is answered so, and what was told twice has its last value. The system message chooses
language, brevity and the assistant's own name. Splits as in `grammar`: `compositional` asks for
pairs that training never shows (no car is red), `held_out` for names that it never shows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from examples.chat import dialogue_topics as topics
from examples.chat.dialogue_topics import OWN_NAME, Fact, Reply, Style, Topic, any_name
from examples.texts.bindings import is_withheld, made_up_words
from examples.texts.grammar import Split, sentences

Message = dict[str, str]
"""`role` and `content`, as chat templates take it."""

_FIRST_PERSON = re.compile(r"\b(I|me|my|mine|i)\b", re.IGNORECASE)
_CASUAL_SHARE = 0.15  # of user messages: no capital, no final mark
_TWO_ACTS_SHARE = 0.2
_SAME_TOPIC_SHARE = 0.4  # of facts: about the topic of an earlier one
_SYSTEM_SHARE = 0.5  # of plain English conversations
_OWN_NAME_SHARE = 0.15


@dataclass(frozen=True)
class Question:
    """A conversation that ends with a question, and its one answer."""

    messages: tuple[Message, ...]
    answer: str

    def after(self, other: Question) -> Question:
        """The control: the same system message and question after the turns of another one."""
        mine = self.messages
        system = tuple(message for message in mine[:1] if message["role"] == "system")
        theirs = tuple(message for message in other.messages[:-1] if message["role"] != "system")
        return Question((*system, *theirs, mine[-1]), self.answer)


class Dialogue:
    """A conversation that grows turn by turn.

    Args:
        style: Of the answers.
    """

    def __init__(self, rng: Random, style: Style, asides: Iterator[str]) -> None:
        self._rng = rng
        self._asides = asides
        self._told: dict[Fact, Fact] = {}  # a fact without its value → with its last one
        own = any_name(rng).english if rng.random() < _OWN_NAME_SHARE else ""
        self._style = replace(style, own_name=own or OWN_NAME)
        self.messages: list[Message] = []
        said = [f"Your name is {own}."] if own else []
        if style.instructions:
            said.append(rng.choice(style.instructions))
        elif not own and rng.random() < _SYSTEM_SHARE:
            said.append(rng.choice(topics.NEUTRAL))
        if said:
            self.messages.append({"role": "system", "content": " ".join(said)})

    def add_any(self) -> None:
        """The next turn: mostly a fact, or a question about one."""
        acts = [self._any_act()]
        if self._rng.random() < _TWO_ACTS_SHARE:
            acts.append(self._any_act())
        self._add(*acts)

    def with_turns(self, count: int) -> list[Message]:
        """The messages after so many more turns."""
        for _ in range(count):
            self.add_any()
        return self.messages

    def tell(self, fact: Fact) -> None:
        """A turn that tells a fact."""
        self._add(self._telling(fact))

    def ask(self, fact: Fact) -> Question:
        """The question about a fact, and the answer that follows from what was told."""
        said, reply = self._asking(fact.without_value)
        asked = {"role": "user", "content": said}
        return Question((*self.messages, asked), self._style.choose(reply))

    @property
    def told(self) -> list[Fact]:
        """What was told, with its last values."""
        return list(self._told.values())

    def last_told(self, fact: Fact) -> Fact | None:
        """The fact with the value that it has now."""
        return self._told.get(fact.without_value)

    def _add(self, *acts: tuple[str, Reply]) -> None:
        said = " ".join(text for text, _ in acts)
        if self._rng.random() < _CASUAL_SHARE:
            said = said[0].lower() + said[1:].rstrip(".?!")
        replies = dict.fromkeys(self._style.choose(reply) for _, reply in acts)
        self.messages += [
            {"role": "user", "content": said},
            {"role": "assistant", "content": " ".join(replies)},
        ]

    def _any_act(self) -> tuple[str, Reply]:
        rng, draw = self._rng, self._rng.random()
        if draw < 0.4:
            return self._telling(self._any_fact())
        if draw < 0.72 and self._told:
            return self._asking(rng.choice(list(self._told)))
        if draw < 0.8:
            return self._asking(any_fact(rng, "train").without_value)
        if draw < 0.86:
            said, reply = rng.choice(topics.SMALL_TALK)
            return rng.choice(said), reply.filled(own=self._style.own_name)
        if draw < 0.92:
            aside = next(self._asides)
            return aside, topics.UNKNOWN if aside.endswith("?") else topics.SEEN
        words = " ".join(made_up_words(rng, "train", rng.randint(1, 4)))
        return rng.choice(topics.REPEAT).format(x=words), Reply.same(words)

    def _any_fact(self) -> Fact:
        """Often of a topic that was there before, so that questions must tell facts apart."""
        before = [fact.topic for fact in self._told]
        if before and self._rng.random() < _SAME_TOPIC_SHARE:
            return any_fact(self._rng, "train", self._rng.choice(before))
        return any_fact(self._rng, "train")

    def _telling(self, fact: Fact) -> tuple[str, Reply]:
        self._told.pop(fact.without_value, None)
        self._told[fact.without_value] = fact
        topic = fact.topic
        return fact.fill(self._rng.choice(topic.told)), fact.reply(topic.confirmed)

    def _asking(self, fact: Fact) -> tuple[str, Reply]:
        known = self._told.get(fact)
        reply = known.reply(known.topic.answer) if known else topics.NOT_TOLD
        return fact.fill(self._rng.choice(fact.topic.asked)), reply


def any_fact(rng: Random, split: Split, topic: Topic | None = None) -> Fact:
    """A fact of the split, of any topic or of one."""
    while True:
        fact = (topic or rng.choice(topics.TOPICS)).draw(rng)
        if split_of(fact) == split:
            return fact


def split_of(fact: Fact) -> Split:
    """`held_out` for a withheld name, `compositional` for a withheld pair of listed words."""
    if fact.is_coined:
        return "held_out" if is_withheld(fact.value.english) else "train"
    pair = (fact.topic.name, fact.of.english, fact.value.english)
    return "compositional" if is_withheld(*pair) else "train"


def dialogues(seed: int) -> Iterator[Dialogue]:
    """Endless empty dialogues of the training split, to which turns are added."""
    rng, asides = Random(f"dialogues {seed}"), _asides("train", seed)
    while True:
        yield Dialogue(rng, rng.choice(topics.STYLES), asides)


def questions(
    split: Split, count: int, seed: int, style: Style | None = None, *, is_told: bool = True
) -> Iterator[Question]:
    """Questions about a fact of the split, told some turns before among other turns.

    Args:
        style: Of the answers; any by default.
        is_told: Whether the fact is told at all. If so, it was not asked for before.
    """
    rng = Random(f"dialogue questions {split} {seed} {style and style.name} {is_told}")
    asides = _asides("held_out", seed)
    while count > 0:
        dialogue = Dialogue(rng, style or rng.choice(topics.STYLES), asides)
        fact = any_fact(rng, split)
        for _ in range(rng.randint(0, 2)):
            dialogue.add_any()
        if is_told:
            dialogue.tell(fact)
        for _ in range(rng.randint(1, 3)):
            dialogue.add_any()
        question = dialogue.ask(fact)
        answers = (one["content"] for one in dialogue.messages if one["role"] == "assistant")
        if is_told and any(question.answer in answer for answer in answers):
            continue
        if dialogue.last_told(fact) == (fact if is_told else None):
            yield question
            count -= 1


def _asides(split: Split, seed: int) -> Iterator[str]:
    """Sentences of `grammar` that are not about the user."""
    for pair in sentences(split, sys.maxsize, seed):
        if not _FIRST_PERSON.search(pair.english):
            yield pair.english
