"""Few-shot episodes over pictures: the words for colours and shapes are those of the prompt alone.

A shot is a picture and two words, the first for the colour of its thing and the second for its
shape. Words are made up and drawn for each episode, so that the answer can only be read from the
shots before it; plain words are the same in every episode. Made-up words, and combinations of
attributes in pictures, are withheld from training as `bindings.py` and `scenes.py` say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random

from PIL import Image

from examples.scenes.rendering import render
from examples.scenes.scene import BACKGROUNDS, COLOURS, SHAPES, TEXTURE_NAMES, Scene, Thing
from examples.scenes.scene import Split as SceneSplit
from examples.texts.bindings import FIRST_HALVES, SECOND_HALVES, Split, is_withheld

PLAIN_WORDS = (*COLOURS, *SHAPES)
MADE_UP_WORDS = tuple(map("".join, product(FIRST_HALVES[:16], SECOND_HALVES)))
MAX_PICTURES = 9  # of an episode, the one that is asked about included
_PLAIN_SHARE = 0.3  # of colours, and of shapes, in training

Kind = tuple[str, str]
"""A colour and a shape."""


@dataclass(frozen=True)
class Shot:
    """The number of a picture in its pool, and the words for its colour and its shape."""

    picture: int
    words: tuple[str, str]


Episode = Sequence[Shot]


@dataclass(frozen=True, eq=False)
class Pool:
    """Pictures of one large thing each."""

    things: tuple[Thing, ...]
    images: tuple[Image.Image, ...]

    @classmethod
    def drawn(cls, split: SceneSplit, count: int, seed: int) -> "Pool":
        """Pictures of a split, the same ones for the same arguments."""
        rng = Random(f"pictures {split} {seed}")
        things: list[Thing] = []
        images: list[Image.Image] = []
        while len(things) < count:
            drawn = (rng.choice(names) for names in (COLOURS, TEXTURE_NAMES, SHAPES))
            scene = Scene(Thing("large", *drawn), rng.choice(BACKGROUNDS))
            if scene.is_possible and scene.is_withheld == (split == "heldout"):
                things.append(scene.first)
                images.append(render(scene, rng.getrandbits(32)))
        return cls(tuple(things), tuple(images))

    @cached_property
    def numbers(self) -> dict[Kind, list[int]]:
        """Colour and shape → the pictures that show them."""
        found: dict[Kind, list[int]] = {}
        for number, thing in enumerate(self.things):
            found.setdefault((thing.colour, thing.shape), []).append(number)
        return found


def lessons(pool: Pool, seed: int) -> Iterator[Episode]:
    """Endless training episodes, in which colours and shapes come again.

    Colours have plain words in some episodes and made-up ones in the others; so have shapes.
    """
    rng = Random(f"picture lessons {seed}")
    taught = words("train")
    while True:
        colours = rng.sample(COLOURS, rng.randint(1, len(COLOURS)))
        shapes = rng.sample(SHAPES, rng.randint(1, len(SHAPES)))
        kinds = [pair for pair in product(colours, shapes) if pair in pool.numbers]
        if not kinds:
            continue
        named = dict(zip((*colours, *shapes), rng.sample(taught, 17), strict=False))
        for values in (colours, shapes):
            if rng.random() < _PLAIN_SHARE:
                named |= {value: value for value in values}
        count = rng.randint(1, MAX_PICTURES)
        yield [_shot(rng, pool, rng.choice(kinds), named) for _ in range(count)]


def questions(pool: Pool, shots: int, split: Split | None, count: int, seed: int) -> list[Episode]:
    """Episodes of so many shots and the picture that is asked about.

    No two shots have the same colour or the same shape. One has the colour that is asked about, and
    another the shape.

    Args:
        shots: None, or at least two.
        split: Of made-up words; None for plain ones.
    """
    rng = Random(f"picture questions {shots} {split} {seed}")
    return [_question(rng, pool, shots, split) for _ in range(count)]


def words(split: Split) -> list[str]:
    """The made-up words of a split."""
    return [word for word in MADE_UP_WORDS if is_withheld(word) == (split == "held_out")]


def _question(rng: Random, pool: Pool, shots: int, split: Split | None) -> Episode:
    named = {value: value for value in PLAIN_WORDS}
    if split is not None:
        named = dict(zip(PLAIN_WORDS, rng.sample(words(split), len(PLAIN_WORDS)), strict=True))
    shown, asked = _kinds(rng, pool, shots)
    return [_shot(rng, pool, kind, named) for kind in (*shown, asked)]


def _kinds(rng: Random, pool: Pool, shots: int) -> tuple[list[Kind], Kind]:
    """Colour and shape of each shot, and those that are asked about."""
    while True:
        shown: list[Kind] = []
        for kind in rng.sample(list(pool.numbers), len(pool.numbers)):
            is_new = all(kind[0] != colour and kind[1] != shape for colour, shape in shown)
            if is_new and len(shown) < shots:
                shown.append(kind)
        colours, shapes = zip(*shown, strict=True) if shown else (COLOURS, SHAPES)
        mixed = {*product(colours, shapes)} - {*shown}
        asked = [kind for kind in pool.numbers if kind in mixed]
        if len(shown) == shots and asked:
            return shown, rng.choice(asked)


def _shot(rng: Random, pool: Pool, kind: Kind, named: dict[str, str]) -> Shot:
    colour, shape = kind
    return Shot(rng.choice(pool.numbers[kind]), (named[colour], named[shape]))
