"""Facts that a user tells in the conversations of `dialogues`, and answers in every style."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from examples.texts import english
from examples.texts.lexicon import NAMES
from examples.texts.phrases import NOTHING, Phrase

OWN_NAME = "Triptych"
_COINED_SHARE = 0.6  # of names and cities
_ONSETS = """b c d f g h j k l m n p r s t v w z br ch cl dr fr gr kr pl pr sh st th tr
    wh y""".split()
_VOWELS = "a e i o u a e i o ai ee ia ie oo".split()
_CODAS = ["", "", "", "", *"n r s l m t d k x ck nd rt st lf".split()]
UNDERSTOOD = Phrase("Vale.", "OK.")


@dataclass(frozen=True)
class Reply:
    """What the assistant says: in both languages, and briefly in both."""

    plain: Phrase
    brief: Phrase

    @classmethod
    def same(cls, text: str) -> Reply:
        """One text in every style."""
        return cls(Phrase(text, text), Phrase(text, text))

    def filled(self, **values: str) -> Reply:
        """With `{…}` replaced in all four."""
        texts = (self.plain, self.brief)
        return Reply(
            *(Phrase(one.spanish.format(**values), one.english.format(**values)) for one in texts)
        )


@dataclass(frozen=True)
class Style:
    """How the assistant answers, and the system messages that ask for it."""

    name: str
    is_spanish: bool = False
    is_brief: bool = False
    instructions: tuple[str, ...] = ()
    own_name: str = OWN_NAME

    def choose(self, reply: Reply) -> str:
        """The reply in this style."""
        phrase = reply.brief if self.is_brief else reply.plain
        return phrase.spanish if self.is_spanish else phrase.english


@dataclass(frozen=True)
class Topic:
    """A kind of fact about the user; `{of}` is what it is about and `{x}` its value.

    Attributes:
        told: Wordings of the user's statement.
        asked: Wordings of the user's question.
        answer: The answer to the question.
        confirmed: The answer to the statement.
        draw_words: What it is about, and the value.
    """

    name: str
    told: tuple[str, ...]
    asked: tuple[str, ...]
    answer: Phrase
    confirmed: Phrase
    draw_words: Callable[[Random], tuple[Phrase, Phrase]]

    def draw(self, rng: Random) -> Fact:
        """A fact of any split."""
        return Fact(self, *self.draw_words(rng))


@dataclass(frozen=True)
class Fact:
    """A topic with words; without a value it is what a question asks for."""

    topic: Topic
    of: Phrase
    value: Phrase = NOTHING

    @property
    def is_coined(self) -> bool:
        """Whether the value is a made-up name."""
        return "coined" in self.value.pairs

    @property
    def without_value(self) -> Fact:
        """The fact that is asked for."""
        return replace(self, value=NOTHING)

    def fill(self, wording: str) -> str:
        """What the user says, in English."""
        an = english.article(self.value.english or "x")
        return wording.format(of=self.of.english, x=self.value.english, an=an)

    def reply(self, phrase: Phrase) -> Reply:
        """What the assistant says; briefly the value alone, or that it was understood."""
        texts = Phrase(
            phrase.spanish.format(of=self.of.spanish, x=self.value.spanish),
            self.fill(phrase.english),
        )
        return Reply(texts, _alone(self.value) if phrase is self.topic.answer else UNDERSTOOD)


def any_name(rng: Random) -> Phrase:
    """A first name of the lexicon, or a made-up one."""
    return listed_or_coined(rng, tuple(Phrase(name, name) for name, _ in NAMES))


def listed_or_coined(rng: Random, listed: tuple[Phrase, ...]) -> Phrase:
    """One of these words, or a made-up name of one to four syllables."""
    if rng.random() > _COINED_SHARE:
        return rng.choice(listed)
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3))]
    word = "".join(parts) + rng.choice(_CODAS)
    if rng.random() < 0.2:
        word = word[1:] if len(word) > 3 else word
    return Phrase(word.capitalize(), word.capitalize(), frozenset({"coined"}))


def _alone(value: Phrase) -> Phrase:
    """A value as a whole sentence."""
    return Phrase(_sentence(value.spanish), _sentence(value.english))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
