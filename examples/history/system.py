"""How a system of the course is declared: as data, beside others that do the same task.

Imports neither torch nor transformers: what responds to `Ask` may be PyTorch, ONNX or the API.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from examples import checkpoint
from examples.texts.grammar import Split

Ask = Callable[[str, Mapping[str, Any]], Sequence[Any]]
"""Task, fields of its request → items of the response. At most `asking.BATCH` items a request."""

Score = Callable[[Ask, int], float]
"""How to ask a system, and how many held-out items → its score."""


def percent(
    score: Callable[..., float],
    function: Callable[..., Any],
    seed: int,
    *split: Split,
    **options: Any,
) -> Callable[[Any, int], float]:
    """100 times an example's score of a function of what is asked and its items.

    Args:
        score: Takes the function, `split` if there is one, the count, the seed and `options`.
        function: Its first parameter is an `Ask`, or what else answers.
    """
    return lambda asked, count: (
        100 * score(partial(function, asked), *split, count, seed, **options)
    )


@dataclass(frozen=True)
class Measure:
    """One score of every system of a group, or one point of its curve.

    Attributes:
        name: What is measured, with its unit, as a table shows it; of a point, its place.
    """

    name: str
    score: Score


@dataclass(frozen=True)
class Curve:
    """A score in dependence of something, such as the length of a sentence.

    Attributes:
        title: The score, with its unit.
        axis: What it depends on.
    """

    title: str
    axis: str
    points: tuple[Measure, ...]


@dataclass(frozen=True)
class System:
    """A trained checkpoint and its place in history.

    Attributes:
        checkpoint: Name of its folder in `examples`, and of its bundle.
        idea: What was new in the paper, in one sentence.
        command: What trains it.
    """

    checkpoint: str
    title: str
    year: int
    paper: str
    idea: str
    command: str

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return checkpoint(self.checkpoint)


@dataclass(frozen=True)
class Group:
    """Systems that answer the same requests, scored by the same measures.

    Attributes:
        name: As in `triptych compare NAME`.
        story: A paragraph in Markdown: the data, and what to look for in the table.
        systems: By year.
    """

    name: str
    title: str
    story: str
    systems: tuple[System, ...]
    measures: tuple[Measure, ...]
    curve: Curve | None = None
