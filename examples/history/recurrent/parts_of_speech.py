"""English sentences with the part of speech of each word, out of a small phrase-structure grammar.

Many words have several parts of speech ("her", "that", "cook", "light", "watch"), which only their
sentence decides. Three disjoint splits as in `grammar`: `compositional` sentences have at least one
withheld pair of content words: a noun never with that adjective, a verb never with that object or
subject. Training has both words, never the two together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.history.recurrent.tagged_phrases import (
    BEING,
    MODALS,
    PEOPLE,
    QUALITIES,
    THINGS,
    TRANSITIVE,
    UNCOUNTED,
    Phrase,
    Tag,
    Tagged,
    noun_phrase,
    object_phrase,
    one,
    paired,
    predicate,
    prepositional_phrase,
    subject_phrase,
    verb_phrase,
)
from examples.texts.grammar import PAIR_SHARE, SENTENCE_SHARE, Split, bucket

FAMOUS = "my dog ate the assignment"
FAMOUS_TAGS: tuple[Tag, ...] = ("possessive", "noun", "verb", "determiner", "noun")
_WITHHELD = frozenset({"dog|eat", "eat|assignment"})  # whatever their hash


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


def _statement(rng: Random) -> Phrase:
    subject = subject_phrase(rng)
    said = subject + predicate(rng, subject)
    if rng.random() < 0.1:
        first = one(rng.choice(("yesterday", "today", "now", "suddenly", "again")), "adverb")
        return first + one(",", "punctuation") + said
    return said


def _joined(rng: Random) -> Phrase:
    subject = subject_phrase(rng)
    first = subject + predicate(rng, subject, is_simple=True)
    joint = one(rng.choice(("and", "but", "or", "so")), "conjunction")
    if rng.random() < 0.5:
        return first + joint + _statement(rng)
    again = predicate(rng, subject, is_simple=True)
    return first + joint + again


def _subordinate(rng: Random) -> Phrase:
    joint = one(rng.choice(("because", "when", "if", "while", "although")), "conjunction")
    main, side = _statement(rng), _statement(rng)
    comma = one(",", "punctuation")
    return main + joint + side if rng.random() < 0.6 else joint + side + comma + main


def _question(rng: Random) -> Phrase:
    subject = subject_phrase(rng)
    roll = rng.random()
    ask = Phrase(())
    if roll < 0.4:
        ask = one(rng.choice(("why", "when", "where", "how")), "adverb")
    elif roll < 0.55:
        forms = rng.choice(TRANSITIVE)
        return (
            one(rng.choice(("who", "what")), "pronoun")
            + verb_phrase(rng, forms, 2)
            + object_phrase(rng)
        )
    if rng.random() < 0.3:
        be = one(rng.choice(BEING)[subject.person], "verb")
        return ask + be + subject + one(rng.choice(QUALITIES), "adjective")
    do = rng.choice(("did", "does" if subject.person == 2 else "do", *MODALS))
    forms, patient = rng.choice(TRANSITIVE), object_phrase(rng)
    asked = ask + one(do, "auxiliary") + subject + one(forms[0], "verb") + patient
    return paired(asked, (subject.head, forms[0]), (forms[0], patient.head))


def _imperative(rng: Random) -> Phrase:
    start = Phrase(())
    if rng.random() < 0.3:
        start = one("do", "auxiliary") + one(rng.choice(("not", "n't")), "particle")
    forms, patient = rng.choice(TRANSITIVE), object_phrase(rng)
    return paired(start + one(forms[0], "verb") + patient, (forms[0], patient.head))


def _there(rng: Random) -> Phrase:
    thing = noun_phrase(rng, THINGS, PEOPLE, UNCOUNTED)
    be = one(rng.choice(BEING)[thing.person], "verb")
    return one("there", "pronoun") + be + thing + prepositional_phrase(rng)
