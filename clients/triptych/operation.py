"""Operations of the API as pure data: arguments in, a validated request out; no I/O.

The clients' methods (`triptych.generated.methods`) and the command line make them; each client
sends them in its own way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from triptych import images
from triptych.errors import InvalidArgument, one_line
from triptych.fields import MessageField, fields_of
from triptych.glossaries.messages import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    ListGlossariesRequest,
)
from triptych.images import Image
from triptych.messages import Chunk, ModelList
from triptych.task import IMAGES, Task

Response_co = TypeVar("Response_co", bound=BaseModel, covariant=True)
_Response = TypeVar("_Response", bound=BaseModel)
_Request = TypeVar("_Request", bound=BaseModel)


@dataclass(frozen=True)
class Operation(Generic[Response_co]):
    """One request and the type of its response.

    Attributes:
        method: Name of the gRPC method.
        path: HTTP path.
        request: Body; without one it is a GET.
        response: Type of the response, or of one chunk of a stream.
        verb: HTTP method; for GET and DELETE, path parameters replace the body.
    """

    method: str
    path: str
    request: BaseModel | None
    response: type[Response_co]
    verb: str = "POST"


LIST_MODELS = Operation("ListModels", "/v1/models", None, ModelList)
GLOSSARIES = "/v1/glossaries"
LIST_GLOSSARIES = Operation(
    "ListGlossaries", GLOSSARIES, ListGlossariesRequest(), GlossaryList, verb="GET"
)


def operation(task: Task, response: type[_Response], /, **given: Any) -> Operation[_Response]:
    """The operation of a task.

    Args:
        task: What is requested.
        response: Its response; named apart so that its type is visible to type checkers.
        given: Fields of the request, in any form that the clients' methods take.

    Raises:
        InvalidArgument: A field is unknown or breaks its rule.
    """
    return Operation(task.verb, task.path, _request(task, given), response)


def stream_operation(task: Task, /, **given: Any) -> Operation[Chunk]:
    """The streaming operation of a task.

    Raises:
        InvalidArgument: A field is unknown or breaks its rule.
    """
    request = _request(task, {**given, "stream": True})
    return Operation(f"{task.verb}Stream", task.path, request, Chunk)


def fields_among(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request among the `locals()` with which a client's method begins."""
    return {name: value for name, value in arguments.items() if name != "self"}


def validate(message: type[_Request], **fields: Any) -> _Request:
    """A message with these fields.

    Raises:
        InvalidArgument: A field breaks its rule.
    """
    try:
        return message(**fields)
    except ValidationError as error:
        raise InvalidArgument(one_line(error)) from None


def _request(task: Task, given: dict[str, Any]) -> BaseModel:
    fields = fields_of(task.request)
    values = {
        name: value if value is None or name not in fields else _value(fields[name], value)
        for name, value in given.items()
    }
    request = validate(task.request, **values)
    _check_unicode(request, "")
    return request


def _check_unicode(value: Any, place: str) -> None:
    """Raises InvalidArgument where a text has a lone surrogate, which no encoding can hold.

    File names and arguments that are not UTF-8 are Python strings with such characters.
    """
    if isinstance(value, str):
        try:
            value.isascii() or value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{place}: not valid Unicode text") from None
    elif isinstance(value, BaseModel):
        for name, part in value:
            _check_unicode(part, f"{place}.{name}" if place else name)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            _check_unicode(part, f"{place}.{index}")


def _value(field: MessageField, given: Any) -> Any:
    """What a message takes, of what the methods take: any iterable for a list, and so on."""
    if field.name == IMAGES:
        return _encode(given)
    if field.shape == "map":
        return dict(given) or None
    if field.shape == "rows":
        return [list(row) for row in given]
    if field.shape == "one":
        return _one(field, given)
    if isinstance(given, str):
        given = [given]
    return [_one(field, element) for element in given]


def _one(field: MessageField, given: Any) -> Any:
    """One value; a message may be given as a tuple or mapping of its fields, or as text."""
    if not field.is_message or isinstance(given, BaseModel):
        return given
    if isinstance(given, Mapping):
        return validate(field.type, **given)
    if isinstance(given, str) and field.has_text_form:
        return field.type.from_text(given)
    names = tuple(field.type.model_fields)
    if len(given) != len(names):
        raise InvalidArgument(f"{field.name}: expected ({', '.join(names)}), not {given!r}")
    return validate(field.type, **dict(zip(names, given, strict=True)))


def _encode(given: Image | Iterable[Image]) -> list[str]:
    """Base64 of one or many. An open file is iterable, and so are bytes; both are one image."""
    one = isinstance(given, str | bytes | bytearray | memoryview | os.PathLike)
    if one or hasattr(given, "read") or hasattr(given, "save"):
        return [images.encode(given)]  # type: ignore[arg-type]
    return [images.encode(image) for image in given]  # type: ignore[union-attr, arg-type]


def put_glossary(
    name: str, terms: Mapping[str, str], source: str | None, target: str | None
) -> Operation[GlossaryInfo]:
    """Stores a glossary.

    Raises:
        InvalidArgument: A name or term breaks its rule.
    """
    glossary = validate(Glossary, name=name, terms=dict(terms), source=source, target=target)
    return Operation("PutGlossary", f"{GLOSSARIES}/{name}", glossary, GlossaryInfo, verb="PUT")


def get_glossary(name: str) -> Operation[Glossary]:
    """Fetches a glossary.

    Raises:
        InvalidArgument: No such name can exist.
    """
    request = validate(GlossaryName, name=name)
    return Operation("GetGlossary", f"{GLOSSARIES}/{name}", request, Glossary, verb="GET")


def delete_glossary(name: str) -> Operation[GlossaryInfo]:
    """Deletes a glossary.

    Raises:
        InvalidArgument: No such name can exist.
    """
    request = validate(GlossaryName, name=name)
    return Operation("DeleteGlossary", f"{GLOSSARIES}/{name}", request, GlossaryInfo, verb="DELETE")
