"""Messages to protobuf and back, for the gRPC client and for the gateway's gRPC front.

One walk over the descriptors serves every message: a twin has the same field names (it is
generated), so only images, maps and lists of lists are treated apart.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pydantic import BaseModel

from triptych import images, messages
from triptych import triptych_pb2 as pb
from triptych.fields import list_name, reachable, row_messages
from triptych.glossaries import messages as glossaries
from triptych.tasks import TASKS

_Pydantic = TypeVar("_Pydantic", bound=BaseModel)

SHARED: tuple[type[BaseModel], ...] = (
    *(messages.Chunk, messages.ModelList, messages.ErrorBody),
    *(glossaries.Glossary, glossaries.GlossaryName, glossaries.GlossaryInfo),
    *(glossaries.GlossaryList, glossaries.ListGlossariesRequest),
)
"""Messages with a twin that belong to no task alone."""
_OF_TASKS = [message for task in TASKS.values() for message in (task.request, task.response)]
TWINS: dict[type[BaseModel], type[Message]] = {
    kind: getattr(pb, kind.__name__)
    for kind in reachable((*_OF_TASKS, *SHARED))
    if hasattr(pb, kind.__name__)
}
"""Message → its protobuf twin of the same name; `ErrorResponse` has none: it is HTTP's wrapper."""
_LISTS = {name: getattr(pb, name) for name in map(list_name, row_messages(TWINS))}
"""Messages that hold one list of a list of lists of messages."""


def to_proto(message: BaseModel) -> Message:
    """The protobuf twin of a message.

    Raises:
        KeyError: The message has no twin.
        ValueError: An image is not base64.
    """
    given = {name: getattr(message, name) for name in type(message).model_fields}
    fields = TWINS[type(message)].DESCRIPTOR.fields_by_name
    arrays = [name for name, value in given.items() if hasattr(value, "tobytes")]
    packed = {
        name: _pack_field(fields[name], value)
        for name, value in given.items()
        if value is not None and name not in arrays
    }
    made = TWINS[type(message)](**packed)
    for name in arrays:
        made.MergeFromString(_wire(fields[name].number, given[name].tobytes()))
    return made


def _wire(number: int, content: bytes) -> bytes:
    """A field with so many bytes, e.g. of packed numbers, as protobuf writes it."""
    head, size = bytearray((number << 3 | 2,)), len(content)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + content


def from_proto(message: Message, into: type[_Pydantic]) -> _Pydantic:
    """The pydantic message of a protobuf message, validated.

    Raises:
        pydantic.ValidationError: A field is missing or out of its range.
    """
    return into.model_validate(_unpack_fields(message, into))


def _pack_field(field: Any, value: Any) -> Any:
    if _is_plain(field):
        return value
    return (
        [_pack(field, item) for item in value] if isinstance(value, list) else _pack(field, value)
    )


def _pack(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return images.decode(value)
    if field.message_type.name == pb.LanguagePair.DESCRIPTOR.name:
        source, target = value
        return pb.LanguagePair(source=source, target=target)
    if field.message_type.name == pb.Row.DESCRIPTOR.name:
        return pb.Row(values=value)
    if field.message_type.name in _LISTS:
        return _LISTS[field.message_type.name](values=[to_proto(item) for item in value])
    # A map: protobuf takes it as it is.
    return value if isinstance(value, dict) else to_proto(value)


def _unpack_fields(message: Message, into: type[BaseModel]) -> dict[str, Any]:
    """Fields of `message` that are set; an empty list is one only where a list is required."""
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if value:
                fields[field.name] = dict(value)
        elif field.is_repeated:
            if value or into.model_fields[field.name].is_required():
                is_plain = _is_plain(field)
                fields[field.name] = (
                    list(value) if is_plain else [_unpack(field, item) for item in value]
                )
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _unpack(field, value)
    return fields


def _unpack(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return images.encode(value)
    if field.message_type is None:
        return value
    if field.message_type.name == pb.LanguagePair.DESCRIPTOR.name:
        return [value.source, value.target]
    if field.message_type.name == pb.Row.DESCRIPTOR.name:
        return list(value.values)
    if field.message_type.name in _LISTS:
        values = value.DESCRIPTOR.fields_by_name["values"]
        return [_unpack(values, item) for item in value.values]
    return _unpack_fields(value, _PYDANTIC[field.message_type.name])


def _is_plain(field: Any) -> bool:
    """Whether values, and lists of them, are the same in both messages: numbers and texts."""
    return field.message_type is None and field.type != FieldDescriptor.TYPE_BYTES


_PYDANTIC = {twin.DESCRIPTOR.name: message for message, twin in TWINS.items()}
