"""Protobuf messages and methods that follow from the pydantic messages of the tasks.

| pydantic | protobuf |
|---|---|
| `str`, `bool`, `float` | `string`, `bool`, `double` |
| `int` | `int32` where its range fits, else `int64` |
| the field `images` | `bytes`: the image file that JSON has in base64 |
| `list[T]`, `dict[K, V]` | `repeated T`, `map<K, V>` |
| `list[list[float]]`, `list[list[str]]` | `repeated Row`, `repeated LanguagePair` |
| `list[list[M]]` of a message `M` | `repeated MList`, a message with `repeated M values` |
| `T` or None; a field of a request that has a default | `optional T` |

The lock (`lock.py`) holds the numbers, and the width of integers of published fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel

from triptych import messages
from triptych.fields import MessageField, fields_of, list_name, listed, reachable
from triptych.glossaries import messages as glossaries
from triptych.task import IMAGES, Task

_SCALARS = {str: "string", bool: "bool", float: "double"}
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
GLOSSARY_MESSAGES = (
    glossaries.Glossary,
    glossaries.GlossaryName,
    glossaries.GlossaryInfo,
    glossaries.GlossaryList,
    glossaries.ListGlossariesRequest,
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
    shared = (messages.Chunk, messages.ModelList, messages.ErrorBody, *GLOSSARY_MESSAGES)
    kinds = reachable([*of_tasks, *shared])
    every = [*map(_message, kinds), *map(_list_of, listed(kinds)), *_HELPERS]
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
        return _SCALARS[kind]
    largest = field.bounds.largest if field.shape == "one" else None
    return "int32" if largest is not None and largest < _INT32_BOUND else "int64"
