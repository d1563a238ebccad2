"""Protobuf messages and methods from pydantic messages, with numbers that are kept.

A number is never given to another field and a field never changes its type, so that clients and
gateways of different ages understand each other. `proto.lock.json` holds every field that was ever
published; a field that no message has any more stays in it, marked as removed.

| pydantic | protobuf |
|---|---|
| `str`, `bool`, `float` | `string`, `bool`, `double` |
| `int` | `int32` where its range fits, else `int64` |
| the field `images` | `bytes`: the image file that JSON has in base64 |
| `list[T]`, `dict[K, V]` | `repeated T`, `map<K, V>` |
| `list[list[float]]`, `list[list[str]]` | `repeated Row`, `repeated LanguagePair` |
| `list[list[M]]` of a message `M` | `repeated MList`, a message with `repeated M values` |
| `T` or None; a field of a request that has a default | `optional T` |

The lock (`proto.lock.json`) holds the numbers, and the width of integers of published fields.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from pydantic import BaseModel

from triptych import messages
from triptych.client.conversion import SHARED
from triptych.fields import MessageField, fields_of, list_name, reachable, row_messages
from triptych.task import IMAGES, Task

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


def update_lock(lock: Lock, messages: Iterable[ProtoMessage]) -> Lock:
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


_SCHEMA_SCALARS = {str: "string", bool: "bool", float: "double"}
_ROWS = {float: "Row", str: "LanguagePair"}
_INT32_BOUND = 2**31
IMAGES_COMMENT = "Image files (PNG, JPEG, ...)."
STREAM_COMMENT = "Implied by the method; may be left out."


@dataclass(frozen=True)
class ProtoField:
    """A field without its number; `type` includes the label, e.g. `optional int32`."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True)
class ProtoMessage:
    """A message of the proto file."""

    name: str
    fields: tuple[ProtoField, ...]
    comment: str = ""


@dataclass(frozen=True)
class ProtoMethod:
    """A method of the service."""

    name: str
    request: str
    response: str
    comment: str
    is_stream: bool = False


LIST_MODELS = ProtoMethod("ListModels", "ListModelsRequest", "ModelList", "The models served.")
GLOSSARIES = (
    ProtoMethod(
        "PutGlossary", "Glossary", "GlossaryInfo", "Store a glossary, or replace the one stored."
    ),
    ProtoMethod("GetGlossary", "GlossaryName", "Glossary", "A glossary with its terms."),
    ProtoMethod(
        "ListGlossaries", "ListGlossariesRequest", "GlossaryList", "The glossaries of this key."
    ),
    ProtoMethod("DeleteGlossary", "GlossaryName", "GlossaryInfo", "Delete a glossary."),
)
_HELPERS = (
    ProtoMessage("ListModelsRequest", ()),
    ProtoMessage("Row", (ProtoField("values", "repeated double"),), "One list of a list of lists."),
    ProtoMessage(
        "LanguagePair",
        (ProtoField("source", "string"), ProtoField("target", "string")),
        'A list of two strings in JSON, e.g. ["es", "en"].',
    ),
)


def proto_messages(tasks: Iterable[Task]) -> list[ProtoMessage]:
    """All messages: those of each task, then those that are shared.

    Raises:
        TypeError: A field has a type without protobuf counterpart.
        ValueError: Two messages have one name.
    """
    of_tasks = [message for task in tasks for message in (task.request, task.response)]
    kinds = reachable([*of_tasks, *SHARED])
    every = [*map(_message, kinds), *map(_list_of, row_messages(kinds)), *_HELPERS]
    names = [message.name for message in every]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"several messages are called {', '.join(sorted(twice))}")
    return every


def proto_methods(tasks: Iterable[Task]) -> list[ProtoMethod]:
    """One method for each task, one more where it streams, the list of models and glossaries."""
    methods = []
    for task in tasks:
        request, response = task.request.__name__, task.response.__name__
        methods.append(ProtoMethod(task.verb, request, response, task.summary))
        if task.streams:
            comment = "The same, as chunks of text while it is generated."
            stream = f"{task.verb}Stream"
            methods.append(ProtoMethod(stream, request, messages.Chunk.__name__, comment, True))
    return [*methods, LIST_MODELS, *GLOSSARIES]


def _message(message: type[BaseModel]) -> ProtoMessage:
    is_request = issubclass(message, messages.Request)
    fields = tuple(_field(field, is_request) for field in fields_of(message).values())
    return ProtoMessage(message.__name__, fields, inspect.cleandoc(message.__doc__ or ""))


def _list_of(message: type[BaseModel]) -> ProtoMessage:
    """One list of a list of lists of messages, which protobuf cannot nest."""
    values = ProtoField("values", f"repeated {message.__name__}")
    return ProtoMessage(list_name(message), (values,), "One list of a list of lists.")


def _field(field: MessageField, is_request: bool) -> ProtoField:
    if field.name == IMAGES:
        return ProtoField(field.name, "repeated bytes", IMAGES_COMMENT)
    comment = STREAM_COMMENT if field.name == "stream" else field.description
    return ProtoField(field.name, _type(field, is_request), comment)


def _type(field: MessageField, is_request: bool) -> str:
    if field.shape == "rows":
        if not field.is_message and field.type not in _ROWS:
            raise TypeError(f"{field.name}: lists of lists hold numbers, strings or messages")
        return f"repeated {list_name(field.type) if field.is_message else _ROWS[field.type]}"
    name = field.type.__name__ if field.is_message else _scalar(field.type, field)
    if field.shape == "map":
        return f"map<{_scalar(field.key, field)}, {name}>"
    if field.shape == "list":
        return f"repeated {name}"
    has_presence = field.is_optional or (is_request and not field.is_required)
    return f"optional {name}" if has_presence else name


def _scalar(kind: type, field: MessageField) -> str:
    if kind is not int:
        return _SCHEMA_SCALARS[kind]
    largest = field.bounds.largest if field.shape == "one" else None
    return "int32" if largest is not None and largest < _INT32_BOUND else "int64"


PROTO = "triptych/triptych.proto"
HEADER = """\
Generated from the messages of `triptych/tasks` by `make proto`; do not edit. Field numbers and
types are locked in `proto.lock.json`.

Differences from JSON: images are the raw bytes of an image file where JSON has base64; a field
that is null in JSON is absent here; a list that is null in JSON is empty here.

Errors: the call ends with the status of the error and its message. Trailing metadata hold
`triptych-error-bin` (a serialized ErrorBody), `retry-after` (seconds, where a retry may succeed)
and `x-request-id`. Requests may carry the metadata `authorization: Bearer KEY` and `x-request-id`;
every response has `x-request-id` in its trailing metadata."""
_WIDTH = 100


def proto_text(messages: Iterable[ProtoMessage], methods: Iterable[ProtoMethod], lock: Lock) -> str:
    """The proto file; `lock` has the number of every field."""
    parts = ["\n".join(_comment(HEADER)), 'syntax = "proto3";', "package triptych.v1;"]
    parts.append("\n".join(_service(methods)))
    parts += ["\n".join(_message_proto(message, lock[message.name])) for message in messages]
    return "\n\n".join(parts) + "\n"


def compile_proto(source: Path, output: Path) -> None:
    """Write `triptych_pb2.py` and `.pyi` below `output`.

    Stub and handlers follow from these (`triptych_pb2_grpc.py`, the gateway's `GrpcTasks`).

    Args:
        source: Folder that holds `triptych/triptych.proto`.
        output: Folder that gets the same sub-folder.

    Raises:
        RuntimeError: protoc refused the file.
    """
    outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *outputs, PROTO]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"protoc: {result.stderr.strip()}")


def _service(methods: Iterable[ProtoMethod]) -> Iterator[str]:
    yield "service Triptych {"
    for method in methods:
        yield from _comment(method.comment, "  ")
        stream = "stream " if method.is_stream else ""
        yield f"  rpc {method.name}({method.request}) returns ({stream}{method.response});"
    yield "}"


def _message_proto(message: ProtoMessage, locked: Mapping[str, LockedField]) -> Iterator[str]:
    yield from _comment(message.comment)
    if not locked:
        yield f"message {message.name} {{}}"
        return
    yield f"message {message.name} {{"
    yield from _reserve(locked)
    for field in sorted(message.fields, key=lambda field: locked[field.name].number):
        yield from _comment(field.comment, "  ")
        yield f"  {locked[field.name].type} {field.name} = {locked[field.name].number};"
    yield "}"


def _reserve(locked: Mapping[str, LockedField]) -> Iterator[str]:
    removed = {field.number: name for name, field in locked.items() if field.is_removed}
    if removed:
        yield f"  reserved {', '.join(str(number) for number in sorted(removed))};"
        names = ", ".join(f'"{name}"' for _, name in sorted(removed.items()))
        yield f"  reserved {names};"


def _comment(text: str, indent: str = "") -> Iterator[str]:
    prefix = f"{indent}// "
    for place, paragraph in enumerate(text.split("\n\n") if text else ()):
        if place:
            yield prefix.rstrip()
        yield from textwrap.wrap(
            " ".join(paragraph.split()),
            _WIDTH,
            initial_indent=prefix,
            subsequent_indent=prefix,
            break_on_hyphens=False,
        )
