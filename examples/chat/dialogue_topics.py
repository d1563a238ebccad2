"""What the conversations of `dialogues` are about, as data: topics, small talk, styles."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from examples.chat.dialogue_facts import UNDERSTOOD, Reply, Style, Topic, any_name, listed_or_coined
from examples.texts import english, spanish
from examples.texts.bindings import COLOUR_NAMES
from examples.texts.lexicon import ADJECTIVES, CITIES, NOUNS, NUMBERS, Noun
from examples.texts.phrases import NOTHING, Phrase

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
