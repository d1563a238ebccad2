"""The kinds of sentence of the example world, each a function of a random generator.

Most are clauses; the rest are questions and the constructions of `contrasts.py`.

Gustar, hay, tener with age and hunger where English has be, names, professions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from examples.texts import english, spanish
from examples.texts.clauses import (
    PLACEABLE,
    Clause,
    Sentence,
    action,
    asking,
    asking_what,
    asking_where,
    asking_who,
    being,
    complement,
    copular,
    counting,
    description,
    maybe_question,
    place,
    possession,
    weighted,
)
from examples.texts.lexicon import CITIES, NUMBERS, VERBS
from examples.texts.phrases import (
    EVERY_KIND,
    NOTHING,
    Nominal,
    Phrase,
    name,
    noun_phrase,
    nouns_of,
    person,
    pronoun,
)

_CLITICS = ("me", "te", "le", "nos", "les")
_STATES = [
    ("hambre", "hungry"),
    ("sed", "thirsty"),
    ("frío", "cold"),
    ("calor", "hot"),
    ("miedo", "afraid"),
    ("sueño", "sleepy"),
    ("razón", "right"),
    ("prisa", "in a hurry"),
]
_PROFESSIONS = [
    ("médico", "m", "doctor"),
    ("profesor", "m", "teacher"),
    ("profesora", "f", "teacher"),
    ("camarero", "m", "waiter"),
    ("cocinero", "m", "cook"),
    ("ingeniera", "f", "engineer"),
    ("abogado", "m", "lawyer"),
    ("enfermera", "f", "nurse"),
    ("pintor", "m", "painter"),
    ("pintora", "f", "painter"),
]
_LIKINGS = [("gustar", "gusta", ("like",)), ("encantar", "encanta", ("love",))]
# Determiners of a definite singular noun phrase.
_KNOWN = ("el", "la", "mi", "tu", "nuestro")


def existing(rng: Random) -> Sentence:
    """No hay pan en la mesa. There is no bread on the table."""
    tense = weighted(rng, {"present": 4, "imperfect": 1, "future": 1})
    is_negated = rng.random() < 0.25
    kinds = EVERY_KIND - {"subject", "sport", "world", "idea"}
    thing = noun_phrase(rng, kinds, "bare" if is_negated else "indefinite")
    verb = english.be(tense, thing.english_person)
    source = {"present": "hay", "imperfect": "había", "future": "habrá"}[tense]
    where = place(rng) if rng.random() < 0.7 else NOTHING
    pairs = thing.pairs | where.pairs | {f"noun:{thing.head}|{source}"}
    if is_negated:
        pairs |= {f"noun:{thing.head}|no {source}"}
        target, source = f"there {verb.plain} no", f"no {source}"
        return Sentence(replace(Phrase(source, target).then(thing).then(where), pairs=pairs))
    if rng.random() < 0.25:
        target = f"{verb.auxiliary} there {verb.lexical}".strip()
        question_phrase = replace(Phrase(source, target).then(thing).then(where), pairs=pairs)
        return Sentence(question_phrase, "yes/no")
    stated = Phrase(source, f"there {verb.plain}").then(thing).then(where)
    return Sentence(replace(stated, pairs=pairs))


def _liked(rng: Random) -> tuple[Phrase, bool]:
    """The thing liked, and whether it is plural; generic nouns have no article in English."""
    if rng.random() < 0.3:
        verb = rng.choice([verb for verb in VERBS if verb.frame != "object" or rng.random() < 0.5])
        what = complement(rng, verb)
        pairs = what.pairs | {f"verb:{verb.spanish}|liked"}
        doing = Phrase(verb.spanish, f"to {verb.english[0]}", pairs)
        return doing.then(what), False
    thing = noun_phrase(rng, EVERY_KIND - {"world", "subject", "sport", "idea"})
    is_general = thing.is_plural or any(
        noun.countability == "mass" and noun.spanish == thing.head for noun in nouns_of(EVERY_KIND)
    )
    is_definite = thing.spanish.split()[0] in ("el", "la", "los", "las")
    target = thing.english.removeprefix("the ") if is_general and is_definite else thing.english
    pairs = thing.pairs | {f"noun:{thing.head}|liked"}
    return Phrase(thing.spanish, target, pairs), thing.is_plural


def liking(rng: Random) -> Sentence:
    """A mi madre no le gusta el café. My mother does not like coffee."""
    subject = person(rng)
    while subject.kind != "person" or (subject.english == "you" and subject.is_plural):
        subject = person(rng)
    liked, is_plural = _liked(rng)
    topic, spanish_verb, forms = rng.choice(_LIKINGS)
    clause = Clause(
        replace(subject, spanish=_experiencer(subject)),
        spanish_verb + ("n" if is_plural else ""),
        english.verb_group(forms, "present", subject.english_person),
        "present",
        f"verb:{topic}",
        liked,
        clitic=_CLITICS[subject.spanish_person],
        is_negated=topic == "gustar" and rng.random() < 0.3,
    )
    if rng.random() < 0.8:
        return Sentence(clause.statement())
    return Sentence(clause.question(is_inverted=False), "yes/no")


def _experiencer(subject: Nominal) -> str:
    if not subject.spanish:
        return ""
    stressed = {"yo": "a mí", "tú": "a ti"}
    return stressed.get(subject.spanish, spanish.contract(f"a {subject.spanish}"))


def having(rng: Random) -> Sentence:
    """Ana tiene veinte años. Ana is twenty years old. Tengo hambre. I am hungry."""
    subject = person(rng)
    tense = weighted(rng, {"present": 3, "imperfect": 1, "future": 1})
    source, target = rng.choice(_STATES)
    state = Phrase(source, target, frozenset({f"state:{source}|{subject.head}"}))
    if rng.random() < 0.4:
        number, english_number = rng.choice(NUMBERS)
        if rng.random() < 0.4:
            number = english_number = str(rng.randint(2, 99))
        state = Phrase(f"{number} años", f"{english_number} years old")
    return maybe_question(rng, copular(rng, subject, "tener", tense, f"state:{source}", state))


def naming(rng: Random) -> Sentence:
    """Mi hermana se llama Elena. My sister's name is Elena."""
    if rng.random() < 0.4:
        source, target = rng.choice([("me llamo", "my name is"), ("te llamas", "your name is")])
        if rng.random() < 0.2:
            question_phrase = rng.choice([("cómo te llamas", "what is your name")])
            return Sentence(Phrase(*question_phrase), "wh")
        return Sentence(Phrase(source, target).then(name(rng)))
    bearer = noun_phrase(rng, frozenset({"person", "animal"}))
    while bearer.is_plural or bearer.spanish.split()[0] not in _KNOWN:
        bearer = noun_phrase(rng, frozenset({"person", "animal"}))
    whose = f"{english.genitive(bearer.english)} name"
    if rng.random() < 0.2:
        question = Phrase(f"cómo se llama {bearer.spanish}", f"what is {whose}", bearer.pairs)
        return Sentence(question, "wh")
    stated = Phrase(f"{bearer.spanish} se llama", f"{whose} is", bearer.pairs)
    return Sentence(stated.then(name(rng, bearer.gender)))


def introducing(rng: Random) -> Sentence:
    """Ana es una buena profesora. Somos de Madrid."""
    subject = name(rng) if rng.random() < 0.5 else pronoun(rng)
    city, translation = rng.choice(CITIES)
    what = Phrase(f"de {city}", f"from {translation}")
    if rng.random() < 0.6 and not subject.is_plural:
        what = _profession(rng, subject)
    tense = weighted(rng, {"present": 4, "imperfect": 1})
    topic = f"being:{what.spanish.split()[-1]}"
    clause = copular(rng, subject, "ser", tense, topic, what)
    return maybe_question(rng, clause, is_copula=True)


def _profession(rng: Random, subject: Nominal) -> Phrase:
    word, _, target = rng.choice([entry for entry in _PROFESSIONS if entry[1] == subject.gender])
    pairs = frozenset({f"noun:{word}|profession"})
    if rng.random() < 0.6:
        return Phrase(word, f"{english.article(target)} {target}", pairs)
    good = "una buena" if subject.gender == "f" else "un buen"
    return Phrase(f"{good} {word}", f"a good {target}", pairs | {f"noun:{word}|adjective:bueno"})


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
