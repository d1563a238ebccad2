"""Inputs and timings of a benchmark run, as JSON between controller and workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.speed.questions import PICTURES, question


@dataclass(frozen=True)
class Item:
    """One sequence: encoder tokens (end token included), or decoder tokens to go on from.

    Models with images take `image` as the seed of a random one; with a prompt that has tokens in
    its place, it is a picture that a question is about.
    """

    source: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    image: int | None = None

    @property
    def reversed(self) -> Item:
        """Another item of the same size, with no common beginning; end tokens stay at the end."""
        source = (*self.source[-2::-1], *self.source[-1:])
        image = None if self.image is None else self.image + 1
        if self.is_question:
            return replace(self, image=image)  # whose first tokens are the picture's
        return Item(source, self.prompt[::-1], image)

    @property
    def is_question(self) -> bool:
        """Whether its prompt holds its image."""
        return self.image is not None and bool(self.prompt)


@dataclass(frozen=True)
class Work:
    """Sequences to decode together.

    Attributes:
        new_tokens: Generated tokens of each.
        is_forced: Nothing ends before `new_tokens`; otherwise they are the cap.
    """

    items: tuple[Item, ...]
    beams: int
    new_tokens: int
    is_forced: bool = True

    def warm_up(self, new_tokens: int | None = None) -> Work:
        """Work of the same sizes without a common prefix: our engine caches prefixes."""
        items = tuple(item.reversed for item in self.items)
        return replace(self, items=items, new_tokens=new_tokens or self.new_tokens)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Work:
        """The inverse of `asdict`."""
        items = (Item(tuple(i["source"]), tuple(i["prompt"]), i["image"]) for i in fields["items"])
        return cls(tuple(items), fields["beams"], fields["new_tokens"], fields["is_forced"])


@dataclass
class Timing:
    """What one run took.

    Attributes:
        seconds: From the first request to the last answer.
        tokens: Generated, of the best hypothesis of each item.
        first_ms: Time to the first token of each item, where tokens are streamed.
        gaps_ms: Times between neighbouring tokens of an item.
        cpu_seconds: Of the engine's process.
        peak_bytes: Largest resident set so far.
        answers: The tokens of each item, of questions about pictures.
    """

    seconds: float = 0.0
    tokens: int = 0
    first_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    answers: list[list[int]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all sequences, per second."""
        return self.tokens / self.seconds


class Clock:
    """Collects when tokens came, and makes first-token times and gaps of them."""

    def __init__(self, count: int, started_s: float) -> None:
        self._started_s = started_s
        self._times: list[list[float]] = [[] for _ in range(count)]

    def record(self, item: int, now_s: float, tokens: int = 1) -> None:
        """Some tokens of an item came."""
        self._times[item] += [now_s] * tokens

    def fill(self, timing: Timing) -> None:
        """Writes down what was seen."""
        seen = [times for times in self._times if times]
        timing.first_ms = [1000 * (times[0] - self._started_s) for times in seen]
        timing.gaps_ms = [float(gap) for times in seen for gap in 1000 * np.diff(times)]


def random_work(
    kind: str, batch: int, beams: int, vocabulary: int, seed: int, new_tokens: int
) -> Work:
    """Distinct random sources of 16 to 48 tokens, prompts of 64, images, or questions about them.

    Args:
        kind: `translate`, `generate`, `caption`, or a model of `PICTURES`.
    """
    random = np.random.default_rng(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(random.integers(2, vocabulary - 1, count).tolist())

    items = {
        "translate": lambda: Item(source=(*ids(int(random.integers(15, 48))), 0)),
        "generate": lambda: Item(prompt=ids(64)),
        "caption": lambda: Item(image=int(random.integers(1 << 30))),
    }
    for model in PICTURES:
        items[model] = partial(_question, model, random)
    return Work(tuple(items[kind]() for _ in range(batch)), beams, new_tokens)


def _question(model: str, random: np.random.Generator) -> Item:
    return Item(prompt=question(model, random), image=int(random.integers(1 << 30)))
