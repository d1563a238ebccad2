"""An official gazette: English sentences and their French, split for testing.

A second world beside `grammar`, made of the structure of one sentence of Bahdanau et al. 2015
(figure 3a): "The agreement on the European Economic Area was signed in August 1992." Every English
sentence has exactly one French rendering. The splits are those of `grammar`: `held_out` sentences
are new, `compositional` ones have a word × construction pair that occurs in no training sentence.
*European Economic Area* is such a pair, so the paper's sentence is new in both ways.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from examples.en_fr import french
from examples.en_fr.gazette_phrases import Nominal, Words, adjectives_of, noun_phrase, words
from examples.en_fr.gazette_words import CITIES, DAYS, MONTHS, VERBS, GazetteNoun, GazetteVerb, Kind
from examples.texts import english
from examples.texts.grammar import PAIR_SHARE, SENTENCE_SHARE, Split, bucket

FAMOUS = (
    "The agreement on the European Economic Area was signed in August 1992.",
    "L'accord sur la zone économique européenne a été signé en août 1992.",
)
WITHHELD_PAIRS = frozenset({"noun:area|adjectives:european economic"})

_EVERY_KIND: frozenset[Kind] = frozenset({"document", "body", "person", "topic"})
_TENSES = {"past": 10, "future": 5, "must": 2, "can": 1, "pluperfect": 2}
# Those whose forms all occur elsewhere, so that a verb can be withheld from one.
_COMPOSED_TENSES = ("must", "can", "pluperfect")
_COPULA_TENSES = {"present": 5, "past": 5, "future": 2, "must": 1}
_PAST_YEARS, _FUTURE_YEARS = range(1945, 2025), range(2027, 2041)
_PAST_TIMES = [
    ("yesterday", "hier"),
    ("last year", "l' année dernière"),
    ("last week", "la semaine dernière"),
    ("last month", "le mois dernier"),
]
_FUTURE_TIMES = [
    ("tomorrow", "demain"),
    ("next year", "l' année prochaine"),
    ("next week", "la semaine prochaine"),
    ("next month", "le mois prochain"),
]
_SPOKEN = [
    ("announced", "annoncé"),
    ("declared", "déclaré"),
    ("confirmed", "confirmé"),
    ("said", "dit"),
]


@dataclass(frozen=True)
class GazettePair:
    """A sentence in both languages, word by word.

    Attributes:
        english: Words and marks, one for each token of the source.
        french: Likewise, elided words ending in an apostrophe.
        links: (French place, English place) of nouns and adjectives.
        pairs: Its word × construction pairs.
    """

    english: tuple[str, ...]
    french: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    pairs: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        """The English text."""
        return written(self.english)

    @property
    def target(self) -> str:
        """The French text."""
        return written(self.french)


def written(spoken: tuple[str, ...]) -> str:
    """Words as text: no space after an apostrophe, none before a mark."""
    text = " ".join(spoken).replace("' ", "'")
    return text.replace(" .", ".").replace(" ,", ",")


@cache
def is_withheld(pair: str) -> bool:
    """Whether a word × construction pair is kept out of training."""
    return pair in WITHHELD_PAIRS or bucket(pair, PAIR_SHARE) == 0


def split_of(pair: GazettePair) -> Split:
    """The one split that a sentence belongs to, whatever its case and punctuation."""
    if any(is_withheld(each) for each in pair.pairs):
        return "compositional"
    text = pair.source.lower().rstrip(".")
    return "held_out" if bucket(text, SENTENCE_SHARE) == 0 else "train"


def sentences(split: Split, count: int, seed: int = 0) -> Iterator[GazettePair]:
    """Sentence pairs of one split in random case and punctuation; deterministic in the arguments.

    The evaluation splits repeat no sentence.
    """
    rng = Random(f"gazette {split} {seed}")
    seen: set[str] = set()
    while count > 0:
        pair = sentence(rng)
        if split_of(pair) != split or pair.source in seen:
            continue
        if split != "train":
            seen.add(pair.source)
        yield _dress(rng, pair)
        count -= 1


def sentence(rng: Random) -> GazettePair:
    """A random sentence of the gazette, in lower case and without its final mark."""
    kinds: dict[Callable[[Random], Words], int] = {
        _passive: 45,
        _active: 28,
        _describing: 15,
        _reporting: 12,
    }
    spoken = rng.choices(list(kinds), list(kinds.values()))[0](rng)
    settled, places = french.settle(spoken.french)
    links = tuple((places[target], source) for target, source in spoken.links)
    return GazettePair(spoken.english, tuple(settled), links, spoken.pairs)


def _dress(rng: Random, pair: GazettePair) -> GazettePair:
    """Both sides alike: mostly standard, else in lower case, without the full stop, or both."""
    source, target = list(pair.english), list(pair.french)
    if rng.random() < 0.85:
        source[0], target[0] = (word[0].upper() + word[1:] for word in (source[0], target[0]))
    else:
        source, target = [word.lower() for word in source], [word.lower() for word in target]
    if rng.random() < 0.85:
        source.append(".")
        target.append(".")
    return GazettePair(tuple(source), tuple(target), pair.links, pair.pairs)


def _passive(rng: Random) -> Words:
    """The agreement was signed by the ministers in Rome in March 1957."""
    verb = rng.choice(VERBS)
    subject = noun_phrase(rng, verb.kinds)
    tense, is_negated = _weighted(rng, _TENSES), rng.random() < 0.15
    agent = Words()
    if rng.random() < 0.2:
        agent = words("by", "par").then(noun_phrase(rng, frozenset({"person", "body"}), 1).words)
    predicate_words = _passive_verb(verb, subject, tense, is_negated)
    return _timed(rng, subject.words.then(predicate_words, agent, _place(rng)), tense)


def _passive_verb(verb: GazetteVerb, subject: Nominal, tense: str, is_negated: bool) -> Words:
    participle = english.participle(verb.english)
    form = french.agree(verb.participle, subject.gender, subject.is_plural)
    is_plural = subject.is_plural
    auxiliaries = {
        "past": (french.auxiliary("avoir", "present", is_plural), "été"),
        "pluperfect": (french.auxiliary("avoir", "imperfect", is_plural), "été"),
        "future": (french.auxiliary("être", "future", is_plural),),
        "must": (french.auxiliary("devoir", "present", is_plural), "être"),
        "can": (french.auxiliary("pouvoir", "present", is_plural), "être"),
    }
    be = _be(tense, is_plural)
    source = f"{be.negated if is_negated else be.plain} {participle}"
    target = _negated(auxiliaries[tense]) if is_negated else auxiliaries[tense]
    return words(source, " ".join((*target, form)), *_verb_pairs(verb, subject, tense, is_negated))


def _active(rng: Random) -> Words:
    """The European ministers will sign the agreement tomorrow."""
    verb = rng.choice(VERBS)
    subject = noun_phrase(rng, frozenset({"person", "body"}), 1)
    thing = noun_phrase(rng, verb.kinds)
    tense, is_negated = _weighted(rng, _TENSES), rng.random() < 0.15
    while is_negated and thing.words.french[0] in ("un", "une"):  # French would say "de"
        thing = noun_phrase(rng, verb.kinds)
    predicate_words = _active_verb(verb, subject, thing, tense, is_negated)
    return _timed(rng, subject.words.then(predicate_words, thing.words, _place(rng)), tense)


def _active_verb(
    verb: GazetteVerb, subject: Nominal, thing: Nominal, tense: str, is_negated: bool
) -> Words:
    is_plural = subject.is_plural
    forms = {
        "past": (french.auxiliary("avoir", "present", is_plural), verb.participle),
        "pluperfect": (french.auxiliary("avoir", "imperfect", is_plural), verb.participle),
        "future": (verb.future_stem + ("ont" if is_plural else "a"),),
        "must": (french.auxiliary("devoir", "present", is_plural), verb.infinitive),
        "can": (french.auxiliary("pouvoir", "present", is_plural), verb.infinitive),
    }
    person = 1 if is_plural else 2
    if tense == "pluperfect":
        participle = english.participle(verb.english)
        group = english.VerbGroup(f"had {participle}", "had", participle)
    else:
        group = english.verb_group(verb.english, "preterite" if tense == "past" else tense, person)
    target = _negated(forms[tense]) if is_negated else forms[tense]
    pairs = _verb_pairs(verb, thing, tense, is_negated)
    return words(group.negated if is_negated else group.plain, " ".join(target), *pairs)


def _describing(rng: Random) -> Words:
    """The national budget will be complex."""
    subject = noun_phrase(rng, _EVERY_KIND)
    adjective = rng.choice(adjectives_of(subject.head.kind, "outer"))
    tense, is_negated = _weighted(rng, _COPULA_TENSES), rng.random() < 0.2
    form = french.agree(adjective.french, subject.gender, subject.is_plural)
    be = _be(tense, subject.is_plural)
    verbs = {
        "present": (french.auxiliary("être", "present", subject.is_plural),),
        "past": (french.auxiliary("être", "imperfect", subject.is_plural),),
        "future": (french.auxiliary("être", "future", subject.is_plural),),
        "must": (french.auxiliary("devoir", "present", subject.is_plural), "être"),
    }
    target = _negated(verbs[tense]) if is_negated else verbs[tense]
    predicate_words = words(be.negated if is_negated else be.plain, " ".join(target))
    pair = frozenset({f"noun:{subject.head.english}|predicate:{adjective.english}"})
    predicate = Words((adjective.english,), (form,), ((0, 0),), pair)
    return subject.words.then(predicate_words, predicate)


def _reporting(rng: Random) -> Words:
    """The minister announced that the agreement had been rejected."""
    speaker = noun_phrase(rng, frozenset({"person"}), 1)
    source, target = rng.choice(_SPOKEN)
    auxiliary = french.auxiliary("avoir", "present", speaker.is_plural)
    predicate_words = words(f"{source} that", f"{auxiliary} {target} que")
    inner = rng.choice((_passive, _active, _describing))(rng)
    return speaker.words.then(predicate_words, inner)


def _be(tense: str, is_plural: bool) -> english.VerbGroup:
    if tense == "pluperfect":
        return english.VerbGroup("had been", "had", "been")
    return english.be("preterite" if tense == "past" else tense, 1 if is_plural else 2)


def _negated(verb: tuple[str, ...]) -> tuple[str, ...]:
    return ("ne", verb[0], "pas", *verb[1:])


def _verb_pairs(verb: GazetteVerb, thing: Nominal, tense: str, is_negated: bool) -> tuple[str, ...]:
    name = f"verb:{verb.english[0]}"
    noun: GazetteNoun = thing.head
    composed = (f"{name}|{tense}",) if tense in _COMPOSED_TENSES else ()
    negated = (f"{name}|negated {tense}",) if is_negated else ()
    return (f"{name}|object:{noun.english}", *composed, *negated)


def _place(rng: Random) -> Words:
    if rng.random() < 0.8:
        return Words()
    source, target = rng.choice(CITIES)
    return Words(("in", source), ("à", target), ((1, 1),))


def _timed(rng: Random, clause: Words, tense: str) -> Words:
    """The clause with a date behind or, after a comma, before it; or with none."""
    if rng.random() < 0.35:
        return clause
    when = _when(rng, is_past=tense in ("past", "pluperfect"))
    if rng.random() < 0.2:
        return when.then(words(",", ","), clause)
    return clause.then(when)


def _when(rng: Random, is_past: bool) -> Words:
    roll = rng.random()
    year = str(rng.choice(_PAST_YEARS if is_past else _FUTURE_YEARS))
    month, mois = rng.choice(MONTHS)
    if roll < 0.4:
        return words(f"in {month} {year}", f"en {mois} {year}")
    if roll < 0.55:
        return words(f"in {year}", f"en {year}")
    if roll < 0.75:
        day = rng.randint(1, 28)
        ordinal = "1er" if day == 1 else str(day)
        return words(f"on {day} {month} {year}", f"le {ordinal} {mois} {year}")
    if roll < 0.85:
        day_name, jour = rng.choice(DAYS)
        return words(f"on {day_name}", jour)
    return words(*rng.choice(_PAST_TIMES if is_past else _FUTURE_TIMES))


def _weighted(rng: Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
