"""Field numbers and types of the protobuf messages, kept for good in a committed file.

A number is never given to another field and a field never changes its type, so that clients and
gateways of different ages understand each other. `proto.lock.json` holds every field that was ever
published; a field that no message has any more stays in it, marked as removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from codegen.schema import ProtoField, ProtoMessage

RESERVED_BY_PROTOBUF = range(19_000, 20_000)


class LockError(ValueError):
    """The messages, or the lock itself, would break the compatibility of the protocol."""


@dataclass(frozen=True)
class LockedField:
    """Number and type of a published field."""

    number: int
    type: str
    is_removed: bool = False


Lock = Mapping[str, Mapping[str, LockedField]]
"""Message → field → what is locked."""


def read_lock(path: Path) -> Lock:
    """The lock in a file; empty where there is none.

    Raises:
        LockError: A number stands twice in a message.
    """
    if not path.exists():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    lock = {
        message: {
            name: LockedField(entry["number"], entry["type"], entry.get("removed", False))
            for name, entry in fields.items()
        }
        for message, fields in entries.items()
    }
    _check_numbers(lock)
    return lock


def lock_text(lock: Lock) -> str:
    """The content of the lock's file: one field per line, in the order of their numbers."""
    messages = []
    for message, fields in sorted(lock.items()):
        lines = [
            f"    {json.dumps(name)}: {json.dumps(_entry(field))}"
            for name, field in sorted(fields.items(), key=lambda item: item[1].number)
        ]
        body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
        messages.append(f"  {json.dumps(message)}: {body}")
    return "{\n" + ",\n".join(messages) + "\n}\n"


def updated(lock: Lock, messages: Iterable[ProtoMessage]) -> Lock:
    """The lock with new fields numbered and vanished ones marked as removed.

    Raises:
        LockError: A field has another type than the locked one, or the name of a removed field.
    """
    current = {message.name: message for message in messages}
    after = {name: _with_new(lock.get(name, {}), message) for name, message in current.items()}
    for name, fields in lock.items():
        known = {field.name for field in current[name].fields} if name in current else set()
        after[name] = {
            **after.get(name, {}),
            **{old: replace(fields[old], is_removed=True) for old in fields.keys() - known},
        }
    return after


def check_published(lock: Lock, published: FileDescriptor) -> None:
    """Compare the lock with the generated code that is committed.

    The lock alone cannot show that one of its own numbers was edited.

    Raises:
        LockError: A published field is missing, or has another number or type in the lock; or a
            reserved one is no longer there as removed.
    """
    for message in published.message_types_by_name.values():
        _check_reserved(lock.get(message.name, {}), message)
        for field in message.fields:
            locked = lock.get(message.name, {}).get(field.name)
            place = f"{message.name}.{field.name}"
            if locked is None:
                raise LockError(f"{place} = {field.number} is published, but not in the lock")
            if locked.number != field.number:
                raise LockError(
                    f"{place} is published as number {field.number}; it cannot become "
                    f"{locked.number}"
                )
            if locked.type != (published_type := _published_type(field)):
                raise LockError(
                    f"{place} is published as {published_type}; it cannot become {locked.type}"
                )


def _check_reserved(locked: Mapping[str, LockedField], message: Descriptor) -> None:
    """Compare what is marked as removed with the names and numbers that the message reserves."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    removed = {name: field.number for name, field in locked.items() if field.is_removed}
    if lost := set(proto.reserved_name) - removed.keys():
        raise LockError(f"{message.name}.{min(lost)} was removed; the lock must keep it")
    numbers = {number for part in proto.reserved_range for number in range(part.start, part.end)}
    if lost_numbers := numbers - set(removed.values()):
        raise LockError(f"{message.name}: number {min(lost_numbers)} is reserved; it cannot change")


def _with_new(locked: Mapping[str, LockedField], message: ProtoMessage) -> dict[str, LockedField]:
    fields = dict(locked)
    for field in message.fields:
        known = fields.get(field.name)
        if known is None:
            number = max((entry.number for entry in fields.values()), default=0) + 1
            if number in RESERVED_BY_PROTOBUF:
                number = RESERVED_BY_PROTOBUF.stop
            fields[field.name] = LockedField(number, field.type)
        else:
            _check_type(message.name, field, known)
    return fields


def _check_type(message: str, field: ProtoField, known: LockedField) -> None:
    if known.is_removed:
        raise LockError(
            f"{message}.{field.name} was removed and its number {known.number} is reserved; "
            "give the new field another name"
        )
    if _values(field.type) != _values(known.type):
        raise LockError(
            f"{message}.{field.name} is locked as {known.type} and cannot become {field.type}; "
            "add a field of another name"
        )


def _values(type_: str) -> str:
    """A type up to the width of its integers."""
    return type_.replace("int64", "int32")


def _check_numbers(lock: Lock) -> None:
    for message, fields in lock.items():
        by_number: dict[int, str] = {}
        for name, field in fields.items():
            other = by_number.setdefault(field.number, name)
            if other != name:
                raise LockError(
                    f"{message}: {other} and {name} have the same number {field.number}"
                )


def _entry(field: LockedField) -> dict[str, Any]:
    entry: dict[str, Any] = {"number": field.number, "type": field.type}
    return {**entry, "removed": True} if field.is_removed else entry


_SCALARS = {1: "double", 3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
"""`FieldDescriptorProto.Type` → name in a proto file, for the types that `schema` generates."""


def _published_type(field: Any) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (message.fields_by_name[name] for name in ("key", "value"))
        return f"map<{_published_type(key)}, {_published_type(value)}>"
    name = message.name if message is not None else _SCALARS[field.type]
    if field.is_repeated:
        return f"repeated {name}"
    has_label = field.containing_oneof is not None  # how `optional` is represented
    return f"optional {name}" if has_label else name
