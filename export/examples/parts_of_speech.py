"""English sentences with the part of speech of each word, out of a small phrase-structure grammar.

Many words have several parts of speech ("her", "that", "cook", "light", "watch"), which only their
sentence decides. Three disjoint splits as in `grammar`: `compositional` sentences have at least one
withheld pair of content words: a noun never with that adjective, a verb never with that object or
subject. Training has both words, never the two together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from export.examples import english
from export.examples.splits import PAIR_SHARE, SENTENCE_SHARE, Split, bucket
from export.examples.tagged_words import (
    ANIMALS,
    CLAUSAL,
    DEGREES,
    FREQUENCIES,
    GIVING,
    INTRANSITIVE,
    MANNERS,
    MODALS,
    NUMBERS,
    PEOPLE,
    PERSON_NAMES,
    PLACE_NAMES,
    PLACES,
    PLURAL_DETERMINERS,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    QUALITIES,
    SINGULAR_DETERMINERS,
    THINGS,
    TO_VERBS,
    TRANSITIVE,
    UNCOUNTED,
    Forms,
)

Tag = Literal[
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
]  # fmt: skip
TAGS: tuple[Tag, ...] = (
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
)  # fmt: skip
FAMOUS = "my dog ate the assignment"
FAMOUS_TAGS: tuple[Tag, ...] = ("possessive", "noun", "verb", "determiner", "noun")
_WITHHELD = frozenset({"dog|eat", "eat|assignment"})  # whatever their hash

Tagged = tuple[tuple[str, Tag], ...]
"""Words with their parts of speech."""
_BEING = ("am", "are", "is"), ("was", "were", "was")


@dataclass(frozen=True)
class Phrase:
    """Words with tags, and the pairs of content words that decide the split.

    Attributes:
        head: The content word that pairs are made with; none for a pronoun.
        person: Of a subject, as `english` numbers them.
    """

    words: Tagged
    pairs: frozenset[str] = frozenset()
    head: str = ""
    person: int = 2

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.words + other.words, self.pairs | other.pairs, self.head, self.person)


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence, its words' tags, and its pairs."""

    words: Tagged
    pairs: frozenset[str]

    @property
    def text(self) -> str:
        """As it is written: no space before a mark or a clitic."""
        return self.spans()[0]

    def spans(self) -> tuple[str, list[tuple[int, int, str]]]:
        """The text, and (start, end, tag) of each word in characters."""
        text, found = "", list[tuple[int, int, str]]()
        for word, tag in self.words:
            is_joined = word in ("'s", "'", "n't", ".", "?", ",", "!")
            text += "" if is_joined or not text else " "
            found.append((len(text), len(text) + len(word), tag))
            text += word
        return text[0].upper() + text[1:], found


def tagged_sentences(split: Split, seed: int = 0) -> Iterator[TaggedSentence]:
    """Endless sentences of one split; deterministic in the arguments."""
    rng = Random(f"parts of speech {split} {seed}")
    while True:
        sentence = _sentence(rng)
        if split_of(sentence) == split:
            yield sentence


def split_of(sentence: TaggedSentence) -> Split:
    """The one split that a sentence belongs to."""
    if any(pair in _WITHHELD or bucket(pair, PAIR_SHARE) == 0 for pair in sentence.pairs):
        return "compositional"
    text = " ".join(word for word, _ in sentence.words).lower()
    return "held_out" if bucket(text, SENTENCE_SHARE) == 0 else "train"


def _sentence(rng: Random) -> TaggedSentence:
    make = rng.choices(
        (_statement, _joined, _question, _imperative, _there, _subordinate), (10, 3, 3, 1, 1, 2)
    )[0]
    phrase = make(rng)
    mark = "?" if make is _question else rng.choice("....!")
    words = phrase.words
    if rng.random() < 0.7 or make is _question:
        words += ((mark, "punctuation"),)
    return TaggedSentence(words, phrase.pairs)


# ------------------------------------------------------------------------------- noun phrases


def _one(word: str, tag: Tag) -> Phrase:
    return Phrase(tuple((part, tag) for part in word.split()))


def _plural(entry: str) -> str:
    singular, _, irregular = entry.partition("/")
    return irregular or english.plural(singular)


def _noun_phrase(rng: Random, *tables: tuple[str, ...], depth: int = 0) -> Phrase:
    """Determiner or owner, perhaps adjectives, a noun, perhaps a prepositional phrase."""
    entry = rng.choice(rng.choice(tables or (PEOPLE, ANIMALS, THINGS)))
    is_plural = entry not in UNCOUNTED and rng.random() < 0.3
    singular = entry.partition("/")[0]
    noun = _plural(entry) if is_plural else singular
    qualities, pairs = _qualities(rng, singular)
    following = (qualities.words or ((noun, "noun"),))[0][0]
    phrase = _determined(rng, following, is_plural, entry in UNCOUNTED, depth) + qualities
    phrase += _one(noun, "noun")
    if depth < 1 and rng.random() < 0.12:
        phrase += _where(rng, depth + 1)
    return Phrase(phrase.words, phrase.pairs | pairs, singular, 1 if is_plural else 2)


def _qualities(rng: Random, noun: str) -> tuple[Phrase, frozenset[str]]:
    phrase, pairs = Phrase(()), set()
    for _ in range(rng.choices((0, 1, 2), (6, 3, 1))[0]):
        quality = rng.choice(QUALITIES)
        pairs.add(f"{quality}|{noun}")
        if rng.random() < 0.12:
            phrase += _one(rng.choice(DEGREES), "adverb")
        phrase += _one(quality, "adjective")
    return phrase, frozenset(pairs)


def _determined(
    rng: Random, following: str, is_plural: bool, is_uncounted: bool, depth: int
) -> Phrase:
    roll = rng.random()
    if roll < 0.3:
        return _one("the", "determiner")
    if roll < 0.5:
        return _one(rng.choice(POSSESSIVES), "possessive")
    if roll < 0.6 and depth < 1:
        if rng.random() < 0.5:
            return _one(rng.choice(PERSON_NAMES), "name") + _one("'s", "possessive")
        owner = _noun_phrase(rng, PEOPLE, depth=2)
        clitic = english.genitive(owner.words[-1][0]).removeprefix(owner.words[-1][0])
        return owner + _one(clitic, "possessive")
    if is_uncounted:
        return Phrase(()) if roll < 0.85 else _one(rng.choice(("some", "this")), "determiner")
    if is_plural:
        if roll < 0.7:
            return Phrase(())
        if roll < 0.8:
            return _one(rng.choice(NUMBERS), "number")
        return _one(rng.choice(PLURAL_DETERMINERS), "determiner")
    chosen = rng.choice(("a", "a", *SINGULAR_DETERMINERS))
    return _one(english.article(following) if chosen == "a" else chosen, "determiner")


def _subject(rng: Random) -> Phrase:
    roll = rng.random()
    if roll < 0.3:
        word = rng.choice(tuple(PRONOUNS))
        return Phrase(((word, "pronoun"),), person=PRONOUNS[word][0])
    if roll < 0.42:
        return Phrase(((rng.choice(PERSON_NAMES), "name"),))
    if roll < 0.46:
        word = rng.choice(("somebody", "everybody", "nobody", "everything", "nothing", "that"))
        return Phrase(((word, "pronoun"),))
    subject = _noun_phrase(rng, PEOPLE, PEOPLE, ANIMALS, THINGS)
    return _relative(rng, subject) if rng.random() < 0.08 else subject


def _relative(rng: Random, subject: Phrase) -> Phrase:
    """The cook who lost her keys; the book that fell."""
    who = _one(rng.choice(("who", "that")), "pronoun")
    said = subject + who + _predicate(rng, subject, is_simple=True)
    return Phrase(said.words, said.pairs, subject.head, subject.person)


def _object(rng: Random) -> Phrase:
    roll = rng.random()
    if roll < 0.2:
        return _one(rng.choice(tuple(PRONOUNS.values()))[1], "pronoun")
    if roll < 0.28:
        return _one(rng.choice(PERSON_NAMES), "name")
    return _noun_phrase(rng, THINGS, THINGS, THINGS, ANIMALS, PEOPLE, UNCOUNTED)


def _where(rng: Random, depth: int = 0) -> Phrase:
    preposition = _one(rng.choice(PREPOSITIONS), "preposition")
    if rng.random() < 0.2:
        return preposition + _one(rng.choice(PLACE_NAMES), "name")
    return preposition + _noun_phrase(rng, PLACES, PLACES, THINGS, PEOPLE, depth=depth + 1)


# ------------------------------------------------------------------------------------ predicates


def _verb(rng: Random, forms: Forms, person: int) -> Phrase:
    """A verb in some tense, perhaps negated or with an adverb."""
    roll = rng.random()
    often = rng.random() < 0.1
    adverb = _one(rng.choice(FREQUENCIES), "adverb") if often else Phrase(())
    no = _one(rng.choice(("not", "n't")), "particle")
    if roll < 0.3:
        return adverb + _one(english.past(forms), "verb")
    if roll < 0.5:
        form = english.third_person(forms[0]) if person == 2 else forms[0]
        return adverb + _one(form, "verb")
    if roll < 0.62:
        do = rng.choice(("did", "does" if person == 2 else "do"))
        return _one(do, "auxiliary") + no + _one(forms[0], "verb")
    if roll < 0.76:
        modal = rng.choice(MODALS)
        not_ = _one("not", "particle") if rng.random() < 0.2 else adverb
        return _one(modal, "auxiliary") + not_ + _one(forms[0], "verb")
    if roll < 0.88:
        be = rng.choice(_BEING)[person]
        not_ = _one("not", "particle") if rng.random() < 0.2 else adverb
        return _one(be, "auxiliary") + not_ + _one(english.progressive(forms), "verb")
    have = rng.choice(("has" if person == 2 else "have", "had"))
    return _one(have, "auxiliary") + adverb + _one(english.participle(forms), "verb")


def _paired(phrase: Phrase, *pairs: tuple[str, str]) -> Phrase:
    """The phrase with pairs of content words; those with an empty side are left out."""
    named = frozenset(f"{one}|{other}" for one, other in pairs if one and other)
    return Phrase(phrase.words, phrase.pairs | named, phrase.head, phrase.person)


def _predicate(rng: Random, subject: Phrase, *, is_simple: bool = False) -> Phrase:
    choices = (_transitive, _intransitive, _being, _giving, _thinking, _wanting, _passive)
    weights = (8, 4, 5, 1, 0 if is_simple else 2, 2, 2)
    phrase = rng.choices(choices, weights)[0](rng, subject)
    if not is_simple and rng.random() < 0.2:
        phrase += _where(rng)
    if not is_simple and rng.random() < 0.15:
        phrase += _one(rng.choice(MANNERS), "adverb")
    return phrase


def _transitive(rng: Random, subject: Phrase) -> Phrase:
    forms, patient = rng.choice(TRANSITIVE), _object(rng)
    verb = _verb(rng, forms, subject.person)
    return _paired(verb + patient, (subject.head, forms[0]), (forms[0], patient.head))


def _intransitive(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(INTRANSITIVE)
    return _paired(_verb(rng, forms, subject.person), (subject.head, forms[0]))


def _being(rng: Random, subject: Phrase) -> Phrase:
    """Is tired; was not a good doctor; seems cold; is behind the tree."""
    be = _one(rng.choice(_BEING)[subject.person], "verb")
    if rng.random() < 0.15:
        seem = (rng.choice(("seem", "look", "feel", "become", "sound")),)
        form = english.third_person(seem[0]) if subject.person == 2 else seem[0]
        be = _one(form, "verb")
    elif rng.random() < 0.3:
        be += _one(rng.choice(("not", "n't", "never", "still")), "particle")
        be = Phrase(tuple((w, "adverb" if w in ("never", "still") else t) for w, t in be.words))
    roll = rng.random()
    if roll < 0.6:
        quality = rng.choice(QUALITIES)
        degree = _one(rng.choice(DEGREES), "adverb") if rng.random() < 0.4 else Phrase(())
        return _paired(be + degree + _one(quality, "adjective"), (quality, subject.head))
    return be + (_noun_phrase(rng, PEOPLE, THINGS) if roll < 0.8 else _where(rng))


def _giving(rng: Random, subject: Phrase) -> Phrase:
    forms, patient = rng.choice(GIVING), _noun_phrase(rng, THINGS)
    verb = _verb(rng, forms, subject.person)
    taker = _one(rng.choice(tuple(PRONOUNS.values()))[1], "pronoun")
    taker = taker if rng.random() < 0.5 else _noun_phrase(rng, PEOPLE)
    if rng.random() < 0.5:
        phrase = verb + patient + _one("to", "preposition") + taker
    else:
        phrase = verb + taker + patient
    return _paired(phrase, (subject.head, forms[0]), (forms[0], patient.head))


def _thinking(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(CLAUSAL)
    that = _one("that", "conjunction") if rng.random() < 0.6 else Phrase(())
    inner = _subject(rng)
    said = inner + _predicate(rng, inner, is_simple=True)
    verb = _verb(rng, forms, subject.person)
    return _paired(verb + that + said, (subject.head, forms[0]))


def _wanting(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(TO_VERBS)
    verb = _verb(rng, forms, subject.person) + _one("to", "particle")
    if rng.random() < 0.4:
        return verb + _one(rng.choice(INTRANSITIVE)[0], "verb")
    inner, patient = rng.choice(TRANSITIVE), _object(rng)
    return _paired(verb + _one(inner[0], "verb") + patient, (inner[0], patient.head))


def _passive(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(TRANSITIVE)
    be = _one(rng.choice(_BEING)[subject.person], "auxiliary")
    done = be + _one(english.participle(forms), "verb")
    if rng.random() < 0.5:
        done += _one("by", "preposition") + _noun_phrase(rng, PEOPLE, ANIMALS)
    return _paired(done, (forms[0], subject.head))


# ------------------------------------------------------------------------------------- sentences


def _statement(rng: Random) -> Phrase:
    subject = _subject(rng)
    said = subject + _predicate(rng, subject)
    if rng.random() < 0.1:
        first = _one(rng.choice(("yesterday", "today", "now", "suddenly", "again")), "adverb")
        return first + _one(",", "punctuation") + said
    return said


def _joined(rng: Random) -> Phrase:
    subject = _subject(rng)
    first = subject + _predicate(rng, subject, is_simple=True)
    joint = _one(rng.choice(("and", "but", "or", "so")), "conjunction")
    if rng.random() < 0.5:
        return first + joint + _statement(rng)
    again = _predicate(rng, subject, is_simple=True)
    return first + joint + again


def _subordinate(rng: Random) -> Phrase:
    joint = _one(rng.choice(("because", "when", "if", "while", "although")), "conjunction")
    main, side = _statement(rng), _statement(rng)
    return main + joint + side if rng.random() < 0.6 else joint + side + _comma() + main


def _comma() -> Phrase:
    return _one(",", "punctuation")


def _question(rng: Random) -> Phrase:
    subject = _subject(rng)
    roll = rng.random()
    ask = Phrase(())
    if roll < 0.4:
        ask = _one(rng.choice(("why", "when", "where", "how")), "adverb")
    elif roll < 0.55:
        forms = rng.choice(TRANSITIVE)
        return _one(rng.choice(("who", "what")), "pronoun") + _verb(rng, forms, 2) + _object(rng)
    if rng.random() < 0.3:
        be = _one(rng.choice(_BEING)[subject.person], "verb")
        return ask + be + subject + _one(rng.choice(QUALITIES), "adjective")
    do = rng.choice(("did", "does" if subject.person == 2 else "do", *MODALS))
    forms, patient = rng.choice(TRANSITIVE), _object(rng)
    asked = ask + _one(do, "auxiliary") + subject + _one(forms[0], "verb") + patient
    return _paired(asked, (subject.head, forms[0]), (forms[0], patient.head))


def _imperative(rng: Random) -> Phrase:
    start = Phrase(())
    if rng.random() < 0.3:
        start = _one("do", "auxiliary") + _one(rng.choice(("not", "n't")), "particle")
    forms, patient = rng.choice(TRANSITIVE), _object(rng)
    return _paired(start + _one(forms[0], "verb") + patient, (forms[0], patient.head))


def _there(rng: Random) -> Phrase:
    thing = _noun_phrase(rng, THINGS, PEOPLE, UNCOUNTED)
    be = _one(rng.choice(_BEING)[thing.person], "verb")
    return _one("there", "pronoun") + be + thing + _where(rng)
