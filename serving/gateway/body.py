"""Bodies to messages: JSON, and multipart where pictures come as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

from fastapi import Request
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.datastructures import FormData, UploadFile

from serving.errors import InvalidRequest, MalformedBody
from serving.gateway.service import Service
from serving.tasks.picture import Picture
from triptych.tasks.zero_shot import MAX_LABELS, MAX_TEMPLATES

M = TypeVar("M", bound=BaseModel)

IMAGES = "images"
_MAX_FIELDS = MAX_LABELS + MAX_TEMPLATES + 100
_MULTIPART = "multipart/form-data"


@dataclass(frozen=True)
class Upload(Generic[M]):
    """A message and the pictures that came with it."""

    message: M
    pictures: list[Picture]


async def read_message(request: Request, message: type[M], service: Service) -> M:
    """A JSON body as a message; read even when the house is full, for many clients send all first.

    Raises:
        MalformedBody: not JSON.
        Overloaded: the house is full, so that it is not worth parsing.
        PayloadTooLarge: too many bytes.
        pydantic.ValidationError: a field does not fit.
    """
    kind = request.headers.get("content-type", "")
    if kind.startswith(_MULTIPART):
        raise MalformedBody("this path takes application/json")
    body = await request.body()
    service.check()
    return await service.in_pool(len(body), message.model_validate_json, body)


async def read_upload(request: Request, message: type[M], service: Service) -> Upload[M]:
    """A message with pictures: base64 in JSON, or files beside the other fields.

    Raises:
        MalformedBody: not what its content type says.
        Overloaded: the house is full, so that it is not worth parsing.
        PayloadTooLarge: too many bytes.
        InvalidRequest: a file that is not a picture's.
        pydantic.ValidationError: a field does not fit.
    """
    if not request.headers.get("content-type", "").startswith(_MULTIPART):
        parsed = await read_message(request, message, service)
        return Upload(parsed, list(getattr(parsed, IMAGES)))
    await request.body()
    service.check()
    files = service.settings.max_client_batch_size + 1  # one more, to say that it is too many
    async with request.form(max_files=files, max_fields=_MAX_FIELDS) as form:
        pictures = [await _picture(part) for part in form.getlist(IMAGES)]
        fields = _fields(form, message)
    fields[IMAGES] = ["beside"] * len(pictures)
    # Form fields are text, so "4" stands for 4: not strict.
    return Upload(message.model_validate(fields, strict=False), pictures)


async def _picture(part: UploadFile | str) -> Picture:
    return part if isinstance(part, str) else await part.read()


def _fields(form: FormData, message: type[BaseModel]) -> dict[str, Any]:
    """Text fields by name; those that are lists may be repeated."""
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(form.keys()):
        if name == IMAGES:
            continue
        values = form.getlist(name)
        if not all(isinstance(value, str) for value in values):
            raise InvalidRequest(f"{name} is a file: only {IMAGES} are", field=name)
        field = message.model_fields.get(name)
        fields[name] = values if field and _is_list(field) else values[-1]
    return fields


def _is_list(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(get_origin(kind) is list for kind in kinds)


def schema(message: type[BaseModel], *, with_files: bool = False) -> dict[str, Any]:
    """A request body for the OpenAPI page."""
    fields = message.model_json_schema()
    content = {"application/json": {"schema": fields}}
    if with_files:
        files = json.loads(json.dumps(fields))
        files["properties"][IMAGES] = {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
        }
        content[_MULTIPART] = {"schema": files}
    return {"requestBody": {"content": content, "required": True}}
