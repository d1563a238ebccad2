"""Reading a checkpoint's `config.json` strictly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from export.layers.activation import ACTIVATIONS
from inference.errors import CheckpointError

MOST_LAYERS = 10_000
MOST = 2**31 - 1
"""Of any size or number: torch refuses larger ones in words of its own."""


class ConfigReader:
    """Fields of `config.json`, read one by one: a refusal names field, value and allowed values.

    Args:
        place: Its name in messages: `config.json` or `config.json, decoder`.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "config.json") -> None:
        self.values = values
        self.place = place

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not null."""
        return {name: value for name, value in self.values.items() if value is not None}

    def _given(self, name: str, default: object) -> Any:
        """A field's value; the default where it is absent, or null."""
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number that is positive, or not under `least`, and not over `MOST`.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        value = self._given(name, default)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= MOST:
            expected = f"a whole number ≥ {least}"
            if is_whole and value > MOST:
                expected = f"a whole number ≤ {MOST}"
            raise CheckpointError(f"{self.place}: {name} must be {expected}, not {value!r}")
        return int(value)

    def layers(self, name: str, default: int | None = None) -> int:
        """A number of layers, bounded because lists of that length are made before any weight.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        count = self.integer(name, default)
        if count > MOST_LAYERS:
            raise CheckpointError(f"{self.place}: {name} = {count} is over {MOST_LAYERS} layers")
        return count

    def index(self, name: str, default: int) -> int:
        """A whole number that counts from 0, such as a token's id."""
        return self.integer(name, default, least=0)

    def token(self, name: str, default: int, vocabulary_size: int) -> int:
        """The id of a token, which the vocabulary must have."""
        value = self.index(name, default)
        if value >= vocabulary_size:
            raise CheckpointError(
                f"{self.place}: {name} = {value} is outside the vocabulary of "
                f"{vocabulary_size} tokens"
            )
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self._given(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"{self.place}: {name} must be a number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.place}: {name} must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        """A name."""
        value = self._given(name, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.place}: {name} must be a string, not {value!r}")
        return value

    def choice(self, name: str, supported: Iterable[str], default: str | None = None) -> str:
        """One of several names.

        Raises:
            CheckpointError: missing without a default, or another one; names those supported.
        """
        value = self._given(name, default)
        names = list(supported)
        if value not in names:
            raise CheckpointError(
                f"{self.place}: {name} = {value!r} is not supported, only {', '.join(names)}"
            )
        return str(value)

    def activation(self, name: str, default: str) -> str:
        """The name of a non-linearity."""
        return self.choice(name, ACTIVATIONS, default)

    def pair(self, name: str, default: int) -> tuple[int, int]:
        """(height, width); one number stands for both."""
        value = self._given(name, default)
        pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
        if len(pair) != 2 or not all(type(side) is int and 0 < side <= MOST for side in pair):
            raise CheckpointError(f"{self.place}: {name} must be one or two sizes, not {value!r}")
        return pair

    def sizes(self, name: str) -> tuple[int, ...]:
        """A list of positive whole numbers.

        Raises:
            CheckpointError: missing, or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not all(type(n) is int and 0 < n <= MOST for n in value):
            raise CheckpointError(f"{self.place}: {name} must be a list of sizes, not {value!r}")
        return tuple(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers.

        Raises:
            CheckpointError: missing, or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not all(type(n) in (int, float) for n in value):
            raise CheckpointError(f"{self.place}: {name} must be a list of numbers, not {value!r}")
        return tuple(map(float, value))

    def section(self, name: str) -> ConfigReader:
        """A sub-dictionary.

        Raises:
            CheckpointError: there is none.
        """
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.place}: {name} is missing")
        return ConfigReader(value, f"{self.place}, {name}")

    def refuse_unless(self, **supported: object) -> None:
        """Refuses fields whose value is neither absent nor the supported one.

        Raises:
            CheckpointError: names the field, its value and the supported one.
        """
        for name, value in supported.items():
            if self._given(name, value) != value:
                raise CheckpointError(
                    f"{self.place}: {name} = {self.values[name]!r} is not supported, "
                    f"only {value!r} is"
                )

    def divide(self, width: int, heads: int) -> None:
        """Refuses a width that is not a multiple of its heads, whose names differ by family.

        Raises:
            CheckpointError: names both.
        """
        if width % heads:
            raise CheckpointError(f"{self.place}: {heads} heads do not share out width {width}")

    def refuse_others(self, *known: str) -> None:
        """Refuses fields of other names, which may change what the network computes.

        Raises:
            CheckpointError: names them.
        """
        others = sorted(set(self.values) - set(known))
        if others:
            raise CheckpointError(f"{self.place}: unknown fields: {', '.join(others)}")

    def refuse_heads(self, *supported: str) -> None:
        """Refuses checkpoints of another head; a base model's (`BartModel`) have the same weights.

        Args:
            supported: Ends of the classes' names in `architectures`.

        Raises:
            CheckpointError: names the head and the supported ones.
        """
        given = self.values.get("architectures") or ()
        other = [name for name in given if not name.endswith((*supported, "Model"))]
        if other:
            raise CheckpointError(
                f"{self.place}: architectures = {other[0]!r} is not supported, "
                f"only classes that end in {' or '.join(supported)} are"
            )

    def refuse_classes_but(self, supported: str) -> None:
        """Refuses checkpoints of another class.

        Raises:
            CheckpointError: names that and the supported one.
        """
        given = self.values.get("architectures") or [supported]
        if supported not in given:
            raise CheckpointError(f"{self.place}: {given[0]} is not supported, only {supported} is")

    def divisible(self, width: str, heads: str) -> None:
        """Refuses a width that is not a multiple of its heads.

        Raises:
            CheckpointError: names both.
        """
        if self.integer(width) % self.integer(heads):
            raise CheckpointError(
                f"{self.place}: {width} = {self.values[width]} is not a multiple of "
                f"{heads} = {self.values[heads]}"
            )
