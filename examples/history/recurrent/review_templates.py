"""More reviews than `reviews` has: what places have, superlatives, advice; some templates held out.

A template with {adjective} or {superlative} has the sentiment of that word, or its opposite where
it negates it. A fifth of the templates are in no training review, in any filling; the withheld
pairs of the others, such as "good" with "food", are the compositional split.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import Literal

from examples.bert.reviews import SENTIMENTS, Review
from examples.texts.grammar import PAIR_SHARE, bucket

TemplateSplit = Literal["train", "compositional", "templates"]
FAMOUS = {
    "this restaurant has good food": "positive",
    "this restaurant is the worst": "negative",
}
_WITHHELD_PAIRS = frozenset({"good|food", "restaurant|worst"})

_PLACES = """restaurant hotel shop museum library market park beach cafe bar theater village island
    castle garden hospital school airport""".split()
_PARTS = """food coffee soup wine bread music service staff rooms beds prices tables paintings
    views tea fish meat cake""".split()
_ADJECTIVES = (
    "good great excellent wonderful perfect incredible fantastic lovely decent superb".split(),
    "bad terrible awful horrible disappointing strange poor dreadful miserable mediocre".split(),
)
_SUPERLATIVES = (
    "best; finest; nicest; most beautiful; most interesting; most wonderful".split("; "),
    "worst; dirtiest; ugliest; most boring; most disappointing; most horrible".split("; "),
)
_DETERMINERS = ("the", "this", "that", "our")
_BEFORE_VOWEL = re.compile(r"\ba(?= [aeiou])")

# A leading * marks a template that is in no training review.
_KEEPING = """{it} has {adjective} {part}; {it} had {adjective} {part} and {adjective} {other};
    *with its {adjective} {part} {it} is {adjective}; the {part} at {it} is {adjective};
    the {part} in {it} was really {adjective}; *we had {adjective} {part} at {it};
    {it} serves {adjective} {part}; {it} is the {superlative}; {it} is the {superlative} of all;
    this is the {superlative} {place} in the city; *the {superlative} {place} in the city;
    that was the {superlative} {place} that I have ever seen; what a {adjective} {place};
    *what {adjective} {part} we had; I have never seen a more {adjective} {place};
    {adjective} {part} and {adjective} {other}; *{it} was {adjective}, the {part} too;
    the {part} was {adjective} and the {other} was {adjective} too; it is a {adjective} {place};
    we remember {it} for its {adjective} {part}; *everybody talks about its {adjective} {part};
    everybody talks about the {adjective} {part} of {it}; a {adjective} place with {adjective}
    {part}; *{it} is really {adjective} for its {part}"""
_REVERSING = """{it} does not have {adjective} {part}; *the {part} at {it} is never {adjective};
    {it} never had {adjective} {part}; {it} is not the {superlative};
    nobody would call this the {superlative} {place}; the {part} was not {adjective} at all;
    *it is not a {adjective} {place}; there is no {adjective} {part} at {it};
    the {part} is anything but {adjective}; *no {adjective} {part} at {it}"""
_ADVICE = (
    """you should visit {it}; we will come back to {it}; I would go to {it} again;
    *everybody should visit {it} again; {it} is worth the money; do not miss {it};
    thank you, we loved {it}; *come back to {it} again and again; everybody should go to {it}""",
    """you should avoid {it}; we will never come back to {it}; I would not go to {it} again;
    *do not go to {it}; {it} is not worth the money; {it} is a waste of money;
    *never again this {place}; I want my money back from {it}; nobody should go to {it}""",
)


def template_reviews(split: TemplateSplit, seed: int = 0) -> Iterator[Review]:
    """Endless reviews of one split; deterministic in the arguments."""
    rng = Random(f"review templates {split} {seed}")
    while True:
        review, is_held_out = _draw(rng)
        own = "train"
        if is_held_out:
            own = "templates"
        elif any(_is_withheld(pair) for pair in review.pairs):
            own = "compositional"
        if own == split:
            yield review


def _is_withheld(pair: str) -> bool:
    return pair in _WITHHELD_PAIRS or bucket(pair, PAIR_SHARE) == 0


def _draw(rng: Random) -> tuple[Review, bool]:
    """A review, and whether its template is held out."""
    is_good = rng.random() < 0.5
    kinds = (_KEEPING, _REVERSING, _ADVICE[not is_good])
    kind = rng.choices(kinds, (5, 2, 2))[0]
    template = " ".join(rng.choice(kind.split(";")).split())
    place, (part, other) = rng.choice(_PLACES), rng.sample(_PARTS, 2)
    adjectives = rng.sample(_ADJECTIVES[not is_good], 2)
    superlative = rng.choice(_SUPERLATIVES[not is_good])
    text = template.removeprefix("*")
    used = adjectives[: text.count("{adjective}")]
    things = {"{part}": part, "{other}": other}
    named = [thing for slot, thing in things.items() if slot in text] or [place]
    pairs = {f"{adjective}|{thing}" for adjective in used for thing in named}
    pairs |= {f"{place}|{superlative}"} if "{superlative}" in text else set()
    for adjective in used:
        text = text.replace("{adjective}", adjective, 1)
    text = text.format(
        it=f"{rng.choice(_DETERMINERS)} {place}",
        place=place,
        part=part,
        other=other,
        superlative=superlative,
    )
    text = _BEFORE_VOWEL.sub("an", text)
    is_positive = is_good != (kind is _REVERSING)
    sentiment = SENTIMENTS[2 if is_positive else 0]
    text = text[0].upper() + text[1:] + ("." if rng.random() < 0.7 else "")
    return Review(text, sentiment, frozenset(pairs)), template.startswith("*")
