"""What one rendering of a template may use: steps, time, and the size of each value.

The size of a list is that of its text: a list of two references to one text counts the text twice.
A few nested lists hold little memory, but their text, their JSON and a comparison of two of them
grow with each level.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError

from inference.processing.cancellation import check_abandoned

MAX_STEPS = 1_000_000
"""Loop iterations, macro calls, operators, and the values that they make."""
MAX_RENDER_S = 2.0
"""A usual conversation takes some milliseconds."""
MAX_CHARACTERS = 4_000_000
"""Of one value's text."""
MAX_DEPTH = 64
"""Of lists in lists."""
NODE = 20
"""Characters that an element of a list counts, beside its own."""
CHARACTERS_PER_STEP = 100
_ELEMENTS_PER_STEP = 10
_STEPS_PER_CONTAINER = 4
_STEPS_PER_CLOCK = 16
_VIEWS = (ItemsView, KeysView, ValuesView)
_CONTAINERS = (list, tuple, dict, *_VIEWS)


class Size(NamedTuple):
    """Of a value."""

    characters: int
    elements: int
    """Of all its lists; 1 for a text."""
    depth: int
    """Of lists in lists; 0 for a text."""


@dataclass
class Budget:
    """What is left for one rendering."""

    steps: int = 0
    until_s: float = field(default_factory=lambda: time.monotonic() + MAX_RENDER_S)
    _sizes: dict[int, tuple[Any, Size]] = field(default_factory=dict)
    """Of lists by their ids, with the lists, so that no other gets the id. None ever changes: the
    sandbox refuses what would."""

    def step(self, count: int = 1) -> None:
        """Raises where the rendering has used up its steps or its time, or nothing waits for it."""
        before = self.steps
        after = self.steps = before + count
        if after > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if before // _STEPS_PER_CLOCK != after // _STEPS_PER_CLOCK:
            check_abandoned()
            if time.monotonic() > self.until_s:
                raise SecurityError(f"it takes more than {MAX_RENDER_S:g} s")

    def made(self, value: Any) -> Any:
        """A new value, after its steps and its size are counted.

        Raises:
            SecurityError: it is too large, or the rendering has used up its steps.
        """
        if isinstance(value, str):
            self.step(1 + len(value) // CHARACTERS_PER_STEP)
            check_size(len(value))
        elif isinstance(value, _CONTAINERS):
            self.step(_STEPS_PER_CONTAINER + len(value) // _ELEMENTS_PER_STEP)
            self.size(value)
        return value

    def size(self, value: Any) -> Size:
        """The size of a value.

        Raises:
            SecurityError: it is too large.
        """
        if isinstance(value, str):
            return Size(len(value), 1, 0)
        if not isinstance(value, _CONTAINERS):
            return Size(1, 1, 0)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        characters = elements = depth = 0
        for part in parts:
            own = self.size(part)
            characters += NODE + own.characters
            elements += own.elements
            depth = max(depth, own.depth)
            check_size(characters)
        if depth >= MAX_DEPTH:
            raise SecurityError(f"it nests lists more than {MAX_DEPTH} deep")
        found = Size(characters, 1 + elements, depth + 1)
        self._sizes[id(value)] = value, found
        return found


def check_size(size: int, limit: int = MAX_CHARACTERS, what: str = "characters") -> None:
    """Raises SecurityError where a size is over its limit."""
    if size > limit:
        raise SecurityError(f"it makes more than {limit} {what}")
