"""A figure: what is computed, how it is drawn, and the numbers that the page states of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Canvas

from benchmarks.figures import NAMES

Facts = Mapping[str, str]
"""What a number is → the number as the page writes it."""


@dataclass(frozen=True)
class Figure:
    """One picture of the page.

    Attributes:
        measure: () → the data; takes a `triptych.Client` where `is_served`.
        draw: The data → the picture.
        facts: The data → the numbers that the page states.
        is_served: Whether the data are responses of a running gateway.
        is_timed: Whether the facts are times, which no second run repeats.
    """

    measure: Callable[..., Any]
    draw: Callable[[Any], Canvas]
    facts: Callable[[Any], Facts]
    is_served: bool = False
    is_timed: bool = False


def figure(name: str) -> Figure:
    """The figure of a name.

    Raises:
        KeyError: there is none of that name.
    """
    if name not in NAMES:
        raise KeyError(f"there is no figure {name!r}; there are {', '.join(NAMES)}")
    found: Figure = import_module(f"benchmarks.figures.{name}").FIGURE
    return found


def percent(share: float, digits: int = 1) -> str:
    """A share as the page writes it."""
    return f"{100 * share:.{digits}f} %"


def picture(folder: Path, name: str) -> Path:
    """The file of a figure."""
    return folder / f"attention-{name}.png"
