"""Short reviews with their sentiment: likes, dislikes and negations of both.

The sentiment of a clause is that of its evaluating word, reversed by each negation; of two clauses
joined by "but" or "although", the main one counts. So no word decides alone: "not bad" is positive,
"hardly good" negative, and two reviews of exactly the same words may have opposite sentiments.
Questions and reports are neutral whatever words they contain.

Three disjoint splits as in `grammar`: `compositional` reviews have at least one withheld pair of an
evaluating word and a construction, such as "boring" after "far from".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal

from examples.bert.facts import facts, worded
from examples.texts.grammar import PAIR_SHARE, SENTENCE_SHARE, Split, bucket
from examples.texts.lexicon import NOUNS

Sentiment = Literal["negative", "neutral", "positive"]
SENTIMENTS: tuple[Sentiment, ...] = ("negative", "neutral", "positive")

_REPORT_SHARE = 0.12
_QUESTION_SHARE = 0.15  # of the rest
_TWO_CLAUSES_SHARE = 0.4
_LIKING_KEPT_SHARE = 0.65  # of verbs without a negation
# Evaluating adjectives by the kinds of noun that they fit: good ones, then bad ones.
_EVERYTHING = "food drink text thing clothes vehicle place film song instrument"
_ADJECTIVES = {
    _EVERYTHING: (
        "good great excellent wonderful perfect incredible",
        "bad terrible awful horrible disappointing strange",
    ),
    "food drink": ("delicious fresh", "bitter cold"),
    "text film song": ("interesting important", "boring long"),
    "place vehicle": ("safe quiet clean", "dangerous dirty"),
    "thing clothes vehicle instrument": ("useful cheap", "expensive broken"),
    "clothes place thing song": ("pretty", "ugly"),
}
# Evaluating verbs, base and past: liking, then disliking.
_VERBS = (
    ("like liked; love loved; enjoy enjoyed; recommend recommended"),
    ("hate hated; dislike disliked; regret regretted; avoid avoided"),
)
_DEGREES = ("", "", "very", "really", "quite", "so")
_ABSOLUTE = "excellent wonderful perfect incredible terrible awful horrible broken".split()
_ABSOLUTE_DEGREES = ("", "", "really")
_DETERMINERS = ("the", "this", "that", "my", "our", "your")
_OPINION_SHARE = 0.65  # of clauses with an adjective; the others have a verb

# Constructions with {it}, {adjective}, {degree} or {verb}; each says as often as its number of
# negations that the word does not hold.
_KEEPING = (
    "{it} is {degree}{adjective}",
    "{it} was {degree}{adjective}",
    "I think that {it} is {degree}{adjective}",
    "we found {it} {degree}{adjective}",
    "everybody says that {it} is {adjective}",
    "{it} was {adjective} again",
    "nobody doubts that {it} is {adjective}",
)
_REVERSING = (
    "{it} is not {degree}{adjective}",
    "{it} was not {adjective} at all",
    "{it} is hardly {adjective}",
    "{it} was far from {adjective}",
    "{it} was never {adjective}",
    "{it} is anything but {adjective}",
    "I do not think that {it} is {degree}{adjective}",
    "nobody would call {it} {adjective}",
    "I doubt that {it} is {adjective}",
)
_KEEPING_TWICE = (
    "I do not think that {it} is not {adjective}",
    "nobody says that {it} is not {adjective}",
    "I doubt that {it} was not {adjective}",
)
_ACTING = ("I {past} {it}", "we really {past} {it}", "everybody {past} {it}", "I would {base} {it}")
_NOT_ACTING = (
    "I did not {base} {it}",
    "we never {past} {it}",
    "nobody {past} {it}",
    "I would not {base} {it}",
    "I hardly {past} {it}",
)
_ASKING = (
    "is {it} {degree}{adjective}",
    "was {it} {adjective} or not",
    "do you think that {it} is {adjective}",
    "did you {base} {it}",
    "would you {base} {it}",
)


@dataclass(frozen=True)
class Review:
    """A text, its sentiment, and the pairs of words and constructions that decide the split."""

    text: str
    sentiment: Sentiment
    pairs: frozenset[str]


@dataclass(frozen=True)
class _Opinion:
    """A clause, whether it is positive, and its pair."""

    words: str
    is_positive: bool
    pair: str


def reviews(split: Split, seed: int = 0) -> Iterator[Review]:
    """Endless reviews of one split; deterministic in the arguments."""
    rng = Random(f"reviews {split} {seed}")
    reports = facts(split, seed)
    while True:
        if rng.random() < _REPORT_SHARE:
            yield Review(worded(next(reports), rng), "neutral", frozenset())
            continue
        draw = _question if rng.random() < _QUESTION_SHARE else _opinions
        review = draw(rng)
        while split_of(review) != split:
            review = draw(rng)
        yield review


def split_of(review: Review) -> Split:
    """The one split that a review belongs to."""
    if any(bucket(pair, PAIR_SHARE) == 0 for pair in review.pairs):
        return "compositional"
    return "held_out" if bucket(review.text.lower(), SENTENCE_SHARE) == 0 else "train"


def same_words(count: int, seed: int) -> list[tuple[Review, Review]]:
    """Pairs of reviews of exactly the same words with opposite sentiments.

    A bag of words gives both of a pair one answer, and so is right half of the time.
    """
    rng = Random(f"same words {seed}")
    return list(islice(_same_words(rng), count))


def _same_words(rng: Random) -> Iterator[tuple[Review, Review]]:
    while True:
        here, there = (_target(rng) for _ in range(2))
        is_good = rng.random() < 0.5
        words = [_adjective(rng, kind, is_good) for _, kind in (here, there)]
        plain = [f"{it} is {word}" for (it, _), word in zip((here, there), words, strict=True)]
        denied = [f"{it} is not {word}" for (it, _), word in zip((here, there), words, strict=True)]
        if here[0] == there[0]:
            continue
        sentiments: tuple[Sentiment, Sentiment] = ("negative", "positive")
        yield (
            Review(_written(f"{plain[0]}, but {denied[1]}"), sentiments[not is_good], frozenset()),
            Review(_written(f"{denied[0]}, but {plain[1]}"), sentiments[is_good], frozenset()),
        )


def _opinions(rng: Random) -> Review:
    """One opinion, or two joined so that the main clause decides."""
    main = _opinion(rng)
    other = _opinion(rng)
    pairs = frozenset({main.pair})
    text = main.words
    if rng.random() < _TWO_CLAUSES_SHARE:
        pairs |= {other.pair}
        if main.is_positive == other.is_positive:
            text = f"{other.words} and {main.words}"
        else:
            text = rng.choice(
                (
                    f"{other.words}, but {main.words}",
                    f"although {other.words}, {main.words}",
                    f"{main.words}, although {other.words}",
                )
            )
    return Review(_written(text), "positive" if main.is_positive else "negative", pairs)


def _opinion(rng: Random) -> _Opinion:
    it, kind = _target(rng)
    is_good = rng.random() < 0.5
    if rng.random() >= _OPINION_SHARE:
        base, past = _verb(rng, is_good)
        is_kept = rng.random() < _LIKING_KEPT_SHARE
        construction = rng.choice(_ACTING if is_kept else _NOT_ACTING)
        words = construction.format(it=it, base=base, past=past)
        return _Opinion(words, is_good == is_kept, f"{base}|{construction}")
    adjective = _adjective(rng, kind, is_good)
    constructions = rng.choices((_KEEPING, _REVERSING, _KEEPING_TWICE), (6, 3, 1))[0]
    construction = rng.choice(constructions)
    words = construction.format(it=it, adjective=adjective, degree=_degree(rng, adjective))
    is_positive = is_good == (constructions is not _REVERSING)
    return _Opinion(words, is_positive, f"{adjective}|{construction}")


def _question(rng: Random) -> Review:
    it, kind = _target(rng)
    is_good = rng.random() < 0.5
    base, _ = _verb(rng, is_good)
    construction = rng.choice(_ASKING)
    adjective = _adjective(rng, kind, is_good)
    degree = _degree(rng, adjective)
    words = construction.format(it=it, adjective=adjective, degree=degree, base=base)
    word = base if "{base}" in construction else adjective
    return Review(_written(words, "?"), "neutral", frozenset({f"{word}|{construction}"}))


def _target(rng: Random) -> tuple[str, str]:
    """What is reviewed, with its kind."""
    kinds = _EVERYTHING.split()
    noun = rng.choice([noun for noun in NOUNS if noun.kind in kinds])
    return f"{rng.choice(_DETERMINERS)} {noun.english}", noun.kind


def _adjective(rng: Random, kind: str, is_good: bool) -> str:
    fitting = [words[not is_good] for kinds, words in _ADJECTIVES.items() if kind in kinds.split()]
    return rng.choice(" ".join(fitting).split())


def _degree(rng: Random, adjective: str) -> str:
    """Nothing, or an adverb and a space; nothing is "very perfect"."""
    degree = rng.choice(_ABSOLUTE_DEGREES if adjective in _ABSOLUTE else _DEGREES)
    return f"{degree} " if degree else ""


def _verb(rng: Random, is_good: bool) -> tuple[str, str]:
    base, past = rng.choice(_VERBS[not is_good].split(";")).split()
    return base, past


def _written(words: str, mark: str = ".") -> str:
    return words[0].upper() + words[1:] + mark
