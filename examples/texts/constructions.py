"""The kinds of sentence of the example world, each a function of a random generator.

Most are clauses; the rest are questions and the constructions of `contrasts.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from examples.texts import spanish
from examples.texts.clauses import (
    action,
    being,
    description,
    place,
    possession,
)
from examples.texts.contrasts import existing, having, introducing, liking, naming
from examples.texts.phrases import (
    NOTHING,
    Phrase,
    name,
    noun_phrase,
    person,
)
from examples.texts.questions import (
    PLACEABLE,
    Sentence,
    asking,
    asking_what,
    asking_where,
    asking_who,
    counting,
    maybe_question,
)

_POSITIONS = [
    ("cerca de", "near"),
    ("lejos de", "far from"),
    ("detrás de", "behind"),
    ("delante de", "in front of"),
    ("al lado de", "next to"),
    ("debajo de", "under"),
]
_THOUGHTS = [
    ("creo que", "I think that"),
    ("sé que", "I know that"),
    ("sabemos que", "we know that"),
    ("espero que no, pero creo que", "I hope not, but I think that"),
]
_KNOWN_ONES = ("el", "la", "los", "las", "este", "esta", "mi", "nuestro")
_LINKS = [("y", "and"), ("pero", "but"), ("porque", "because")]
_GREETINGS = [
    ("hola", "hello"),
    ("buenos días", "good morning"),
    ("buenas noches", "good night"),
    ("gracias", "thank you"),
    ("muchas gracias", "thank you very much"),
    ("adiós", "goodbye"),
    ("hasta mañana", "see you tomorrow"),
    ("lo siento", "I am sorry"),
    ("de nada", "you are welcome"),
]


def _acting(rng: Random) -> Sentence:
    clause = action(rng)
    if clause.time.spanish and rng.random() < 0.4:
        first = clause.time
        rest = replace(clause, time=NOTHING).statement()
        return Sentence(first.then(replace(rest, pairs=clause.pairs)))
    return maybe_question(rng, clause)


def _describing(rng: Random) -> Sentence:
    return maybe_question(rng, description(rng), is_copula=True)


def _possessing(rng: Random) -> Sentence:
    return maybe_question(rng, possession(rng))


def _locating(rng: Random) -> Sentence:
    """El gato está debajo de la mesa. The cat is under the table."""
    subject = person(rng) if rng.random() < 0.4 else noun_phrase(rng, PLACEABLE)
    where = place(rng)
    if rng.random() < 0.5:
        mark = noun_phrase(rng, frozenset({"place", "thing", "vehicle"}))
        source, target = rng.choice(_POSITIONS)
        pairs = mark.pairs | {f"noun:{mark.head}|{source}"}
        source = spanish.contract(f"{source} {mark.spanish}")
        where = Phrase(source, f"{target} {mark.english}", pairs)
    return maybe_question(rng, being(rng, subject, where, "place"), is_copula=True)


def _relating(rng: Random) -> Sentence:
    """El hombre que vende pan está cansado. The man who sells bread is tired."""
    kinds = frozenset({"person", "animal"})
    head = noun_phrase(rng, kinds)
    while head.spanish.split()[0] not in _KNOWN_ONES:
        head = noun_phrase(rng, kinds)
    inner = replace(action(rng, head), time=NOTHING, frequency=None)
    who = Phrase("que", "who" if head.kind == "person" else "that")
    full = Phrase(head.spanish, head.english, head.pairs).then(who).then(inner.predicate())
    whole = replace(head, spanish=full.spanish, english=full.english, pairs=full.pairs)
    return Sentence(description(rng, whole).statement())


def _joining(rng: Random) -> Sentence:
    """Two clauses with y, pero or porque; or a clause reported as a thought."""
    clauses = [rng.choice((action, description, possession))(rng).statement() for _ in range(2)]
    if rng.random() < 0.35:
        return Sentence(Phrase(*rng.choice(_THOUGHTS)).then(clauses[0]))
    source, target = rng.choice(_LINKS)
    if clauses[1].spanish.startswith("i"):
        source, target = "pero", "but"
    comma = "," if source == "pero" and rng.random() < 0.5 else ""
    first = replace(
        clauses[0], spanish=clauses[0].spanish + comma, english=clauses[0].english + comma
    )
    return Sentence(first.then(Phrase(source, target)).then(clauses[1]))


def _greeting(rng: Random) -> Sentence:
    greeting = Phrase(*rng.choice(_GREETINGS))
    if rng.random() < 0.8:
        called = name(rng)
        comma = replace(greeting, spanish=f"{greeting.spanish},", english=f"{greeting.english},")
        return Sentence(comma.then(called))
    return Sentence(greeting)


_WEIGHTS: dict[Callable[[Random], Sentence], int] = {
    _acting: 30,
    _describing: 18,
    _possessing: 6,
    asking: 6,
    asking_what: 3,
    asking_who: 3,
    asking_where: 3,
    counting: 2,
    _locating: 7,
    existing: 7,
    liking: 8,
    having: 4,
    naming: 2,
    introducing: 4,
    _relating: 4,
    _joining: 7,
    _greeting: 1,
}
_CONSTRUCTIONS = list(_WEIGHTS)
_FREQUENCIES = list(_WEIGHTS.values())


def sentence(rng: Random) -> Sentence:
    """A random sentence of the world; frequent kinds have a higher weight."""
    return rng.choices(_CONSTRUCTIONS, _FREQUENCIES)[0](rng)
