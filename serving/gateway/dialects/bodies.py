"""Bodies to messages: JSON, and multipart where images are files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args, get_origin

from annotated_types import MaxLen
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from starlette.datastructures import FormData, UploadFile

from serving.errors import InvalidRequest, MalformedBody, PayloadTooLarge
from serving.gateway.request_errors import from_validation
from serving.gateway.service import Service
from serving.planning.image_inputs import ImageInput
from triptych.task import IMAGES

M = TypeVar("M", bound=BaseModel)

MULTIPART = "multipart/form-data"
MAX_VALUES = 200_000
"""Commas and colons of a JSON body, which bound its values: pydantic reports each wrong one, and a
report takes a kilobyte. The texts of a request that is within its limits have fewer."""
_PLACEHOLDER = "file"
"""Stands for an image file in the message."""


async def read_json(request: Request, message: type[M], service: Service) -> M:
    """A JSON body as a message.

    The body is read even when the gateway is full: many clients send all of it before they read.

    Raises:
        MalformedBody: not JSON.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes or values.
        InvalidRequest: a field is not valid.
    """
    if _is_multipart(request):
        raise MalformedBody("this path takes application/json")
    body = await request.body()
    service.execution.check()
    return await service.execution.in_pool(len(body), _validated, message, body)


async def read_message(
    request: Request, message: type[M], service: Service
) -> tuple[M, Sequence[ImageInput]]:
    """A message and its images: base64 in JSON, or files beside the other fields.

    Raises:
        MalformedBody: not what its content type says, or multipart for a message without images.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes.
        InvalidRequest: a file in a field other than `images`.
        pydantic.ValidationError: a field is not valid.
    """
    if IMAGES not in message.model_fields or not _is_multipart(request):
        parsed = await read_json(request, message, service)
        return parsed, getattr(parsed, IMAGES, None) or ()
    await request.body()
    service.execution.check()
    batch = service.settings.max_client_batch_size + 1  # one more, to report that it is too many
    fields_limit = sum(_most_values(field, batch) for field in message.model_fields.values())
    async with request.form(max_files=batch, max_fields=fields_limit) as form:
        images = [await _image(part) for part in form.getlist(IMAGES)]
        fields = _fields(form, message)
    if images or message.model_fields[IMAGES].is_required():
        fields[IMAGES] = [_PLACEHOLDER] * len(images)
    # Form fields are text, so "4" is 4: not strict.
    return message.model_validate(fields, strict=False), images


def _validated(message: type[M], body: bytes) -> M:
    """A JSON body as a message; errors are converted here, off the event loop: they may be many."""
    if body.count(b",") + body.count(b":") > MAX_VALUES:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} commas and colons: send several requests"
        )
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


def _is_multipart(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith(MULTIPART)


async def _image(part: UploadFile | str) -> ImageInput:
    return part if isinstance(part, str) else await part.read()


def _fields(form: FormData, message: type[BaseModel]) -> dict[str, Any]:
    """Text fields by name; those of lists may be repeated."""
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(form.keys()):
        if name == IMAGES:
            continue
        values = form.getlist(name)
        if not all(isinstance(value, str) for value in values):
            raise InvalidRequest(f"{name} is a file: only {IMAGES} are", field=name)
        field = message.model_fields.get(name)
        is_list = field is not None and _is_list(field)
        if len(values) > 1 and not is_list:
            raise InvalidRequest(f"{name} is given {len(values)} times: give it once", field=name)
        fields[name] = values if is_list else values[0]
    return fields


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in _parts(field.annotation))


def _most_values(field: FieldInfo, batch: int) -> int:
    """Form fields that a field of the message may take."""
    constraints = [*field.metadata, *_parts(field.annotation)]
    lengths = [item.max_length for item in constraints if isinstance(item, MaxLen)]
    return (lengths[0] + 1 if lengths else batch) if _is_list(field) else 1


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation and what it is made of, the items of lists excepted."""
    yield annotation
    if isinstance(annotation, FieldInfo):
        yield from annotation.metadata
    elif get_origin(annotation) is not list:
        for part in get_args(annotation):
            yield from _parts(part)
