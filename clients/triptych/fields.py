"""The types of message fields, read from pydantic annotations in one place.

The protobuf generator, the client methods and the command line derive from these.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from triptych.messages import current_name

Shape = Literal["one", "list", "rows", "map"]
"""A single value; a list of values; a list of lists; a mapping."""


@dataclass(frozen=True)
class Bounds:
    """Range of a number; None where it is open."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    @property
    def largest(self) -> float | None:
        """The upper bound, inclusive or not."""
        return self.below if self.maximum is None else self.maximum


@dataclass(frozen=True)
class MessageField:
    """One field of a message.

    Attributes:
        name: Name in every protocol.
        type: Scalar type or message class of one value.
        shape: How many values there are.
        key: Type of the keys of a map.
        is_optional: Whether None is a value.
        is_required: Whether it has no default.
        default: Its default, None for required fields.
        description: One or two sentences.
        bounds: Range of one value.
        current_name: The field that this one is an earlier name of; None for others.
    """

    name: str
    type: Any
    shape: Shape = "one"
    key: Any = None
    is_optional: bool = False
    is_required: bool = False
    default: Any = None
    description: str = ""
    bounds: Bounds = Bounds()
    current_name: str | None = None

    @property
    def is_message(self) -> bool:
        """Whether one value is a message."""
        return isinstance(self.type, type) and issubclass(self.type, BaseModel)

    @property
    def has_text_form(self) -> bool:
        """Whether one value is a message that may be written as one text."""
        return self.is_message and hasattr(self.type, "from_text")


@functools.cache
def fields_of(message: type[BaseModel]) -> Mapping[str, MessageField]:
    """The fields of a message by name, its own before those that it inherits.

    Raises:
        TypeError: A field has a type that the protocol does not have.
    """
    own = [name for name in message.__annotations__ if name in message.model_fields]
    inherited = [name for name in message.model_fields if name not in own]
    return MappingProxyType(
        {name: _field(name, message.model_fields[name]) for name in (*own, *inherited)}
    )


def field_of(name: str, annotation: Any, default: Any = None) -> MessageField:
    """The field of an annotation outside a message, e.g. of a function's parameter."""
    return _field(name, FieldInfo.from_annotated_attribute(annotation, default))


def reachable(roots: Iterable[type[BaseModel]]) -> list[type[BaseModel]]:
    """The messages `roots` and all that their fields hold, each before those that it holds."""
    found: dict[type[BaseModel], None] = {}
    waiting = list(roots)
    while waiting:
        message = waiting.pop(0)
        if message not in found:
            found[message] = None
            waiting[:0] = [field.type for field in fields_of(message).values() if field.is_message]
    return list(found)


def row_messages(messages: Iterable[type[BaseModel]]) -> list[type[BaseModel]]:
    """The messages that a field of `messages` holds as lists of lists, each once."""
    fields = (field for message in messages for field in fields_of(message).values())
    rows = (field.type for field in fields if field.shape == "rows" and field.is_message)
    return list(dict.fromkeys(rows))


def list_name(message: type[BaseModel]) -> str:
    """The protobuf message that holds one list of such a list of lists."""
    return f"{message.__name__}List"


def _field(name: str, info: FieldInfo) -> MessageField:
    known = MessageField(
        name=name,
        type=None,
        is_required=info.is_required(),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        description=info.description or "",
        bounds=_bounds(info.metadata),
        current_name=current_name(info),
    )
    return _set_type(known, info.annotation)


def _set_type(known: MessageField, annotation: Any) -> MessageField:
    """`known` with the type of `annotation`, stripped of its wrappers one by one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = _bounds(arguments[1:])
        texts = [part.description for part in arguments[1:] if isinstance(part, FieldInfo)]
        known = known if bounds == Bounds() else replace(known, bounds=bounds)
        description = next(filter(None, texts), known.description)
        return _set_type(replace(known, description=known.description or description), arguments[0])
    if origin in (typing.Union, types.UnionType):
        (kind,) = (part for part in arguments if part is not types.NoneType)
        return _set_type(replace(known, is_optional=True), kind)
    if origin is list:
        return _set_type(
            replace(known, shape="list" if known.shape == "one" else "rows"), *arguments
        )
    if origin is dict:
        key = _set_type(known, arguments[0]).type
        return _set_type(replace(known, shape="map", key=key), arguments[1])
    if origin is Literal:
        return replace(known, type=type(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, str | int | float | BaseModel):
        return replace(known, type=annotation)
    raise TypeError(f"{known.name}: {annotation} is no type of the protocol")


_LIMITS = (
    (annotated_types.Ge, "ge", "minimum"),
    (annotated_types.Le, "le", "maximum"),
    (annotated_types.Gt, "gt", "above"),
    (annotated_types.Lt, "lt", "below"),
)


def _bounds(metadata: Iterable[Any]) -> Bounds:
    """The range that constraints declare; other constraints are passed over."""
    found = {
        name: getattr(constraint, attribute)
        for constraint in _flat(metadata)
        for kind, attribute, name in _LIMITS
        if isinstance(constraint, kind)
    }
    return Bounds(**found)


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            yield from entry.metadata
        else:
            yield entry
