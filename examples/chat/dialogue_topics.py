"""Topics of the conversations of `dialogues`, small talk, and facts that a user states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from examples.texts import english, spanish
from examples.texts.bindings import COLOUR_NAMES
from examples.texts.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, NUMBERS, Noun
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


_LISTED_JOBS = "doctor artist engineer lawyer nurse painter waiter cook student tourist".split()
_PERSONS = "hermano hermana amigo vecino primo jefe".split()


def _noun(noun: Noun) -> Phrase:
    return Phrase(noun.spanish, noun.english)


def _nouns(*kinds: str) -> tuple[Noun, ...]:
    """Countable nouns, none of them with two Spanish words."""
    found = [noun for noun in NOUNS if noun.kind in kinds and noun.countability == "count"]
    words = [noun.english for noun in found]
    return tuple(noun for noun in found if words.count(noun.english) == 1)


_ANIMALS, _OBJECTS = _nouns("animal"), _nouns("thing", "clothes", "vehicle")
_PLACES = _nouns("place")
_PEOPLE = tuple(noun for noun in NOUNS if noun.spanish in _PERSONS)
_JOBS = tuple(noun for noun in NOUNS if noun.english in _LISTED_JOBS)
_COLOURS = tuple(word for word in ADJECTIVES if word.english in COLOUR_NAMES)
_CITIES = tuple(Phrase(there, here) for there, here in CITIES)
_NUMBERS = tuple(Phrase(there, here) for there, here in NUMBERS)


def _about_me(draw: Callable[[Random], Phrase]) -> Callable[[Random], tuple[Phrase, Phrase]]:
    return lambda rng: (NOTHING, draw(rng))


def _pets(rng: Random) -> tuple[Phrase, Phrase]:
    animal = rng.choice(_ANIMALS)
    several = Phrase(
        animal.spanish_plural or spanish.plural(animal.spanish),
        animal.english_plural or english.plural(animal.english),
    )
    return several, rng.choice(_NUMBERS)


def _coloured(rng: Random) -> tuple[Phrase, Phrase]:
    thing, colour = rng.choice(_OBJECTS), rng.choice(_COLOURS)
    return _noun(thing), Phrase(spanish.agree(colour.spanish, thing.gender, False), colour.english)


def _called(rng: Random) -> tuple[Phrase, Phrase]:
    return _noun(rng.choice(_ANIMALS + _PEOPLE)), any_name(rng)


def _placed(rng: Random) -> tuple[Phrase, Phrase]:
    thing, place = rng.choice(_OBJECTS), rng.choice(_PLACES)
    article = "el" if place.gender == "m" else "la"
    where = Phrase(f"en {article} {place.spanish}", f"{place.preposition} the {place.english}")
    return _noun(thing), where


TOPICS = (
    Topic(
        "name",
        ("My name is {x}.", "My name is {x}.", "I am {x}.", "I'm {x}.", "You can call me {x}.",
         "Hello, my name is {x}.", "Hi, I am {x}."),
        ("What is my name?", "What is my name?", "Who am I?", "What's my name?",
         "Do you remember my name?", "Tell me my name.", "Do you know my name?"),
        Phrase("Te llamas {x}.", "Your name is {x}."),
        Phrase("Mucho gusto, {x}.", "Nice to meet you, {x}."),
        _about_me(any_name),
    ),
    Topic(
        "city",
        ("I live in {x}.", "I live in {x}.", "I'm from {x}.", "My home is in {x}."),
        ("Where do I live?", "Where do I live?", "Which city do I live in?",
         "Where is my home?", "Do you remember where I live?", "Where am I from?"),
        Phrase("Vives en {x}.", "You live in {x}."),
        Phrase("{x} es muy bonito.", "{x} is very pretty."),
        _about_me(lambda rng: listed_or_coined(rng, _CITIES)),
    ),
    Topic(
        "job",
        ("I am {an} {x}.", "I'm {an} {x}.", "I work as {an} {x}."),
        ("What is my job?", "What do I do?", "What's my job?", "What do I work as?"),
        Phrase("Eres {x}.", "You are {an} {x}."),
        Phrase("Es un buen trabajo.", "That is a good job."),
        _about_me(lambda rng: _noun(rng.choice(_JOBS))),
    ),
    Topic(
        "age",
        ("I am {x} years old.", "I'm {x} years old.", "I am {x}."),
        ("How old am I?", "What is my age?", "Do you know how old I am?"),
        Phrase("Tienes {x} años.", "You are {x} years old."),
        Phrase("Ya veo.", "I see."),
        _about_me(lambda rng: rng.choice(_NUMBERS)),
    ),
    Topic(
        "favorite color",
        ("My favorite color is {x}.", "My favourite colour is {x}.", "I like {x}."),
        ("What is my favorite color?", "What is my favourite colour?", "Which color do I like?"),
        Phrase("Tu color favorito es el {x}.", "Your favorite color is {x}."),
        Phrase("Es un color bonito.", "That is a pretty color."),
        _about_me(lambda rng: _listed_colour(rng)),
    ),
    Topic(
        "number",
        ("I have {x} {of}.", "I have {x} {of}.", "There are {x} {of} in my house."),
        ("How many {of} do I have?", "How many {of} have I got?", "How many {of} are there?"),
        Phrase("Tienes {x} {of}.", "You have {x} {of}."),
        Phrase("Ya veo.", "I see."),
        _pets,
    ),
    Topic(
        "color",
        ("My {of} is {x}.", "My {of} is {x}.", "I have a {x} {of}.", "I bought a {x} {of}."),
        ("What color is my {of}?", "What colour is my {of}?", "Which color is my {of}?",
         "What is the color of my {of}?"),
        Phrase("Tu {of} es {x}.", "Your {of} is {x}."),
        Phrase("Ya veo.", "I see."),
        _coloured,
    ),
    Topic(
        "called",
        ("My {of} is called {x}.", "My {of}'s name is {x}.", "The name of my {of} is {x}.",
         "I have a {of} called {x}."),
        ("What is my {of} called?", "What is the name of my {of}?", "What is my {of}'s name?",
         "Do you remember the name of my {of}?"),
        Phrase("Tu {of} se llama {x}.", "Your {of} is called {x}."),
        Phrase("{x} es un nombre bonito.", "{x} is a nice name."),
        _called,
    ),
    Topic(
        "place",
        ("My {of} is {x}.", "I left my {of} {x}.", "I put my {of} {x}."),
        ("Where is my {of}?", "Where did I leave my {of}?", "Where did I put my {of}?"),
        Phrase("Tu {of} está {x}.", "Your {of} is {x}."),
        Phrase("Lo recordaré.", "I will remember that."),
        _placed,
    ),
)  # fmt: skip


def _listed_colour(rng: Random) -> Phrase:
    colour = rng.choice(_COLOURS)
    return Phrase(colour.spanish, colour.english)


NOT_TOLD = Reply(
    Phrase("No me lo has dicho.", "You have not told me."), Phrase("No lo sé.", "Unknown.")
)
UNKNOWN = Reply(Phrase("No lo sé.", "I do not know."), Phrase("No lo sé.", "Unknown."))
SEEN = Reply(Phrase("Ya veo.", "I see."), UNDERSTOOD)
SMALL_TALK = (
    (
        ("Hello.", "Hi.", "Hello!", "Good morning.", "Hey."),
        Reply(
            Phrase("¡Hola! ¿Cómo te llamas?", "Hello! What is your name?"),
            Phrase("¡Hola!", "Hello!"),
        ),
    ),
    (
        ("How are you?", "How do you do?", "How is it going?"),
        Reply(Phrase("Estoy bien, gracias.", "I am fine, thank you."), Phrase("Bien.", "Fine.")),
    ),
    (
        ("Thank you.", "Thanks.", "Thank you!", "Thanks a lot."),
        Reply(Phrase("De nada.", "You are welcome."), Phrase("De nada.", "Welcome.")),
    ),
    (
        ("What is your name?", "Who are you?", "What are you called?", "What's your name?"),
        Reply(Phrase("Me llamo {own}.", "My name is {own}."), Phrase("{own}.", "{own}.")),
    ),
    (
        ("What can you do?", "Can you help me?", "How can you help me?", "Help me."),
        Reply(
            Phrase("Recuerdo lo que me dices.", "I remember what you tell me."),
            Phrase("Recordar.", "Remember."),
        ),
    ),
    (
        ("Goodbye.", "Bye.", "See you later.", "Good night."),
        Reply(Phrase("¡Hasta luego!", "Goodbye!"), Phrase("¡Adiós!", "Bye!")),
    ),
)  # fmt: skip
REPEAT = ("Repeat: {x}", "Say {x}", "Repeat after me: {x}")
NEUTRAL = ("You are a helpful assistant.", "Be friendly.", "You are a nice assistant.")
PLAIN = Style("plain")
SPANISH = Style(
    "Spanish",
    is_spanish=True,
    instructions=("Answer in Spanish.", "Speak Spanish.", "Always answer in Spanish."),
)
BRIEF = Style(
    "brief",
    is_brief=True,
    instructions=("Be brief.", "Answer in one word.", "Give short answers."),
)
BRIEF_SPANISH = Style(
    "brief Spanish",
    is_spanish=True,
    is_brief=True,
    instructions=(
        "Answer in Spanish. Be brief.",
        "Be brief. Answer in Spanish.",
        "Answer in one Spanish word.",
    ),
)
STYLES = (PLAIN, PLAIN, SPANISH, BRIEF, BRIEF_SPANISH)
"""Twice as many conversations have none."""
