"""Reading a checkpoint's `config.json` strictly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from export.layers.activation import ACTIVATIONS
from inference.errors import CheckpointError

MOST_LAYERS = 10_000
MOST = 2**31 - 1
"""Of any size or number: torch refuses larger ones in words of its own."""

T = TypeVar("T")
_KINDS: dict[object, str] = {
    int: "integer",
    float: "number",
    bool: "flag",
    str: "text",
    tuple[int, int]: "pair",
    tuple[int, ...]: "sizes",
}
"""Type of a field → the method that reads it, where the field's key names no other."""


def key(
    name: str | None = None, default: object = None, kind: str | None = None, **options: Any
) -> Any:
    """A field of a configuration's dataclass that `ConfigReader.read` fills.

    Args:
        name: In `config.json`. A field whose type is a dataclass is read from the section of that
            name; without a name, from where the configuration itself is read.
        default: Where the file has no value. None: the file must have one.
        kind: The method of `ConfigReader` that reads it, where the field's type does not decide.
        options: Further arguments of that method; of a section, those of `ConfigReader.section`.
    """
    if default is not None:
        options["default"] = default
    return field(metadata={"name": name, "kind": kind, "options": options})


def reading(config: type[T]) -> Callable[[Mapping[str, Any]], T]:
    """What reads a configuration all of whose fields have a key."""
    return lambda values: ConfigReader(values).read(config)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= MOST


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_size, value))


class ConfigReader:
    """Fields of `config.json`: a refusal names field, value and allowed values.

    A null is read as if the field were absent.

    Args:
        place: Its name in messages: `config.json` or `config.json, decoder`.
        defaults: Of a family, where they are not those of the fields, by most families' names.
        names: Name of a field in most families → its name in this one.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        place: str = "config.json",
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.values = values
        self.place = place
        self.defaults = defaults or {}
        self.names = names or {}

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not null."""
        return {name: value for name, value in self.values.items() if value is not None}

    def read(self, config: type[T], **given: Any) -> T:
        """A configuration: a dataclass whose fields have a `key`, are given, or have a default.

        Its attribute `supported`, where it has one, has the arguments of `refuse_unless`.

        Raises:
            CheckpointError: a field is missing, or has a value that is not supported.
        """
        self.refuse_unless(**getattr(config, "supported", {}))
        types = get_type_hints(config)
        for each in fields(config):  # type: ignore[arg-type]
            if each.name not in given and each.metadata:
                given[each.name] = self._read_field(types[each.name], **each.metadata)
        return config(**given)

    def _read_field(
        self, kind_of: Any, name: str | None, kind: str | None, options: Mapping[str, Any]
    ) -> Any:
        if kind is None and is_dataclass(kind_of):
            reader = self if name is None else self.section(name, **options)
            return reader.read(kind_of)  # type: ignore[arg-type]
        return getattr(self, kind or _KINDS[kind_of])(name, **options)

    def find(self, name: str, default: object = None) -> Any:
        """A field's value; the default where it is absent."""
        value = self.values.get(self._name(name))
        return self.defaults.get(name, default) if value is None else value

    def _name(self, name: str) -> str:
        """The name of a field in this family."""
        return self.names.get(name, name)

    def _check(
        self, name: str, default: object, expected: str, is_valid: Callable[[Any], bool]
    ) -> Any:
        """A field's value.

        Args:
            expected: Of the message that refuses others.
        """
        value = self.find(name, default)
        if not is_valid(value):
            raise CheckpointError(
                f"{self.place}: {self._name(name)} must be {expected}, not {value!r}"
            )
        return value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number that is positive, or not under `least`, and not over `MOST`.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        self._check(
            name, default, f"a whole number ≥ {least}", lambda n: type(n) is int and least <= n
        )
        return int(self._check(name, default, f"a whole number ≤ {MOST}", lambda n: n <= MOST))

    def layers(self, name: str, default: int | None = None) -> int:
        """A number of layers, bounded because lists of that length are made before any weight.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        count = self.integer(name, default)
        if count > MOST_LAYERS:
            raise CheckpointError(
                f"{self.place}: {self._name(name)} = {count} is over {MOST_LAYERS} layers"
            )
        return count

    def heads(self, name: str, default: int | None = None, width: str = "hidden_size") -> int:
        """A number of heads, which share out a width.

        Raises:
            CheckpointError: the width is not a multiple of it; names both.
        """
        count, whole = self.integer(name, default), self.integer(width)
        if whole % count:
            raise CheckpointError(
                f"{self.place}: {self._name(width)} = {whole} is not a multiple of "
                f"{self._name(name)} = {count}: {count} heads do not share out width {whole}"
            )
        return count

    def index(self, name: str, default: int | None = None) -> int:
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

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        return float(self._check(name, default, "a number", _is_number))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        is_flag = self._check(name, default, "true or false", lambda value: isinstance(value, bool))
        return bool(is_flag)

    def text(self, name: str, default: str | None = None) -> str:
        """A name."""
        return str(self._check(name, default, "a string", lambda value: isinstance(value, str)))

    def choice(self, name: str, supported: Iterable[str], default: str | None = None) -> str:
        """One of several names.

        Raises:
            CheckpointError: missing without a default, or another one; names those supported.
        """
        value = self.find(name, default)
        names = list(supported)
        if value not in names:
            raise CheckpointError(
                f"{self.place}: {self._name(name)} = {value!r} is not supported, "
                f"only {', '.join(names)}"
            )
        return str(value)

    def activation(self, name: str, default: str | None = None) -> str:
        """The name of a non-linearity."""
        return self.choice(name, ACTIVATIONS, default)

    def pair(self, name: str, default: int | None = None) -> tuple[int, int]:
        """(height, width); one number stands for both."""
        value = self._check(
            name,
            default,
            "one or two sizes",
            lambda value: _is_size(value) or (_are_sizes(value) and len(value) == 2),
        )
        height, width = (value, value) if isinstance(value, int) else value
        return height, width

    def sizes(
        self, name: str, default: list[int] | None = None, count: int | None = None
    ) -> tuple[int, ...]:
        """A list of positive whole numbers, perhaps of a given length.

        Raises:
            CheckpointError: missing without a default, or something else.
        """
        sizes = tuple(self._check(name, default, "a list of sizes", _are_sizes))
        if count is not None and len(sizes) != count:
            raise CheckpointError(f"{self.place}: {name} needs {count} numbers, not {list(sizes)}")
        return sizes

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers.

        Raises:
            CheckpointError: missing, or something else.
        """
        return tuple(map(float, self._check(name, None, "a list of numbers", _are_numbers)))

    def section(
        self,
        name: str,
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> ConfigReader:
        """A sub-dictionary, with defaults and names of its own.

        Raises:
            CheckpointError: there is none.
        """
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.place}: {name} is missing")
        return ConfigReader(value, f"{self.place}, {name}", defaults, names)

    def refuse_unless(self, **supported: object) -> None:
        """Refuses fields whose value is neither absent nor the supported one.

        Raises:
            CheckpointError: names the field, its value and the supported one.
        """
        for name, value in supported.items():
            if self.given.get(name, value) != value:
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

    def _classes(self) -> list[str]:
        """The names in `architectures`; none where the file has none.

        Raises:
            CheckpointError: it is no list of names.
        """
        given = self.values.get("architectures") or []
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise CheckpointError(f"{self.place}: architectures must be a list of names")
        return given

    def refuse_heads(self, *supported: str) -> None:
        """Refuses checkpoints of another head; a base model's (`BartModel`) have the same weights.

        Args:
            supported: Ends of the classes' names in `architectures`.

        Raises:
            CheckpointError: names the head and the supported ones.
        """
        other = [name for name in self._classes() if not name.endswith((*supported, "Model"))]
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
        given = self._classes() or [supported]
        if supported not in given:
            raise CheckpointError(f"{self.place}: {given[0]} is not supported, only {supported} is")
