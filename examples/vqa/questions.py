"""Questions about a scene, and their answers in one to four words, or in a caption.

A question is asked only where the scene decides it: no question says "the circle" of two circles.
Whatever differs between two things may point at one of them: its place, size, colour, texture or
shape.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from examples.scenes.scene import (
    COLOURS,
    RELATION_WORDS,
    SHAPES,
    Scene,
    Thing,
    article,
    caption,
    pick,
)

PLACES = {"left": ("left", "right"), "above": ("upper", "lower")}
"""Relation of the first thing → the places of both."""
_CAPITAL_SHARE, _AMERICAN_SHARE = 0.5, 0.3
_ASKED = ("colour", "shape", "texture", "size")


@dataclass(frozen=True)
class Question:
    """A question about a picture.

    Attributes:
        kind: By which scores are grouped.
    """

    kind: str
    text: str
    answer: str


Draw = Callable[[Scene, np.random.Generator], Question | None]
"""A question of one kind about a scene; None where the scene does not decide one."""


def draw_questions(scene: Scene, rng: np.random.Generator) -> Iterator[Question]:
    """Questions about a scene, without end."""
    while True:
        question = _DRAWS[int(rng.integers(len(_DRAWS)))](scene, rng)
        if question is not None:
            yield replace(question, text=_spelled(question.text, rng))


def _count(scene: Scene, rng: np.random.Generator) -> Question:
    text = pick(rng, ("how many shapes are there?", "how many things do you see?"))
    return Question("count", text, ("one", "two")[len(scene.things) - 1])


def _background(scene: Scene, rng: np.random.Generator) -> Question:
    text = pick(rng, ("what colour is the background?", "which background is it?"))
    return Question("background", text, scene.background)


def _attribute(scene: Scene, rng: np.random.Generator) -> Question:
    """What one thing is like, which something else points at."""
    asked = pick(rng, _ASKED)
    thing = scene.things[int(rng.integers(len(scene.things)))]
    words = _pointing(scene, thing, asked, rng)
    text = {
        "colour": f"what colour is the {words}?",
        "shape": f"which shape is the {words}?",
        "texture": f"which texture has the {words}?",
        "size": f"is the {words} small or large?",
    }[asked]
    return Question(asked, text, getattr(thing, asked))


def _presence(scene: Scene, rng: np.random.Generator) -> Question:
    """Whether there is such a thing; half of the answers are no, mostly of near misses."""
    thing = scene.things[int(rng.integers(len(scene.things)))]
    asked = replace(thing, texture="plain")
    if rng.random() < 0.5:
        others = [
            replace(asked, colour=pick(rng, COLOURS)),
            replace(asked, shape=pick(rng, SHAPES)),
        ]
        if scene.second is not None:
            others.append(replace(asked, colour=_other(scene, thing).colour))
            others.append(replace(asked, shape=_other(scene, thing).shape))
        asked = others[int(rng.integers(len(others)))]
    kinds = {(one.colour, one.shape) for one in scene.things}
    is_there = (asked.colour, asked.shape) in kinds
    text = f"is there {article(asked.colour)} {asked.colour} {asked.shape}?"
    return Question("presence", text, "yes" if is_there else "no")


def _comparison(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Whether one thing has a relation to the other; half of the answers are no."""
    found = _pair(scene, rng)
    if found is None:
        return None
    first, second, relation = found
    is_true = rng.random() < 0.5
    if not is_true:
        first, second = second, first
    text = f"is the {first} {RELATION_WORDS[relation]} the {second}?"
    return Question("relation", text, "yes" if is_true else "no")


def _place(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Where one thing is."""
    found = _pair(scene, rng)
    if found is None:
        return None
    first, second, relation = found
    return Question("place", f"where is the {first}?", f"{RELATION_WORDS[relation]} the {second}")


def _description(scene: Scene, rng: np.random.Generator) -> Question:
    text = pick(rng, ("describe this image.", "describe the picture.", "what do you see?"))
    return Question("description", text, caption(scene))


_DRAWS: tuple[Draw, ...] = (
    *(_count, _background, _description),
    *(_presence, _comparison, _place) * 2,
    *(_attribute,) * 3,
)


def _pointing(scene: Scene, thing: Thing, asked: str, rng: np.random.Generator) -> str:
    """Words for one thing, without what is asked: "upper shape", "red one", "circle"."""
    if scene.second is None or scene.relation is None:
        return "thing" if asked == "shape" else pick(rng, ("thing", "shape", thing.shape))
    other = _other(scene, thing)
    words = [
        _place_of(scene, thing),
        *(
            getattr(thing, name)
            for name in ("size", "colour")
            if name != asked and getattr(thing, name) != getattr(other, name)
        ),
    ]
    ways = [f"{word} {'thing' if asked == 'shape' else 'shape'}" for word in words]
    if asked != "shape" and thing.shape != other.shape:
        ways.append(thing.shape)
    return ways[int(rng.integers(len(ways)))]


def _pair(scene: Scene, rng: np.random.Generator) -> tuple[str, str, str] | None:
    """Names of both things, in either order, and the relation of the first one; None without."""
    if scene.second is None or scene.relation is None or scene.first.shape == scene.second.shape:
        return None
    seen = scene.seen_from_second() if rng.random() < 0.5 else scene
    assert seen.second is not None
    assert seen.relation is not None
    return seen.first.shape, seen.second.shape, seen.relation


def _place_of(scene: Scene, thing: Thing) -> str:
    seen = scene if scene.relation in PLACES else scene.seen_from_second()
    assert seen.relation is not None
    return PLACES[seen.relation][0 if thing == seen.first else 1]


def _other(scene: Scene, thing: Thing) -> Thing:
    assert scene.second is not None
    return scene.second if thing == scene.first else scene.first


def _spelled(text: str, rng: np.random.Generator) -> str:
    """With a capital or without, and in either spelling of colour."""
    if rng.random() < _AMERICAN_SHARE:
        text = text.replace("colour", "color")
    return text[0].upper() + text[1:] if rng.random() < _CAPITAL_SHARE else text
