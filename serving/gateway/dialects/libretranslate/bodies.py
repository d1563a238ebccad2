"""Bodies to messages: JSON and forms alike, with the key in the body or in a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile

from serving.errors import InvalidRequest, MalformedBody, PayloadTooLarge, Unauthorized, WrongKey
from serving.gateway.auth import Keys, bearer
from serving.gateway.dialects.bodies import MAX_VALUES, MULTIPART
from serving.gateway.request_errors import from_validation
from serving.gateway.service import Service

M = TypeVar("M", bound=BaseModel)
Fields = Mapping[str, Any]

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
LIST = "q"
"""The field that a form may repeat."""
_MAX_ESCAPES = 300_000
"""In a form: decoding takes microseconds for each, and there is no key yet."""
_OTHER_FIELDS = 32
"""In a form; unknown ones are ignored."""


@dataclass(frozen=True)
class Upload:
    """A file of a form."""

    field: str
    name: str
    content: bytes


async def read_fields(request: Request, service: Service) -> tuple[Fields, Upload | None]:
    """The fields of a body by name, and the file of a multipart form.

    Raises:
        MalformedBody: not what its content type says, or of a type that is not read.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes or values.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    most = service.settings.max_client_batch_size + _OTHER_FIELDS
    if kind == MULTIPART:
        await request.body()
        service.execution.check()
        async with request.form(max_files=1, max_fields=most) as form:
            texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
            files = [
                Upload(name, part.filename or "", await part.read())
                for name, part in form.multi_items()
                if isinstance(part, UploadFile)
            ]
        return _gathered(texts), files[0] if files else None
    body = await request.body()
    service.execution.check()
    if kind == JSON:
        return await service.execution.in_pool(len(body), _of_json, body), None
    if kind == FORM:
        return await service.execution.in_pool(len(body), _of_form, body, most), None
    raise MalformedBody(f"send {JSON}, {FORM} or {MULTIPART}")


def check_key(authorization: str | None, fields: Fields, keys: Keys) -> None:
    """Check `api_key` of the body, or `Authorization: Bearer KEY`.

    Raises:
        Unauthorized: there is neither.
        WrongKey: neither is right.
    """
    given = (bearer(authorization), str(fields.get("api_key") or ""))
    try:
        keys.check(*given)
    except Unauthorized:
        if any(given):
            raise WrongKey("Invalid API key") from None
        problem = "no API key: send it as api_key, or Authorization: Bearer KEY"
        raise Unauthorized(problem) from None


def validated(message: type[M], fields: Fields) -> M:
    """The fields as a message.

    Raises:
        InvalidRequest: a field is missing or not valid.
    """
    try:
        return message.model_validate(fields)
    except ValidationError as error:
        refusal = from_validation(error)
        name = (refusal.field or "").partition(".")[0]  # without the kind of text: one, or a list
        found = refusal.message.partition(": ")[2]
        raise InvalidRequest(f"{name}: {found}", field=name) from None


def _of_json(body: bytes) -> Fields:
    if body.count(b",") + body.count(b":") > MAX_VALUES:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} commas and colons: send several requests"
        )
    try:
        fields = from_json(body)
    except ValueError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise MalformedBody("the body is not a JSON object")
    return fields


def _of_form(body: bytes, most: int) -> Fields:
    if body.count(b"%") > _MAX_ESCAPES:
        raise PayloadTooLarge(f"the form has more than {_MAX_ESCAPES} escaped bytes: send JSON")
    try:
        text = body.decode("utf-8")  # curl's `-d` sends letters as they are
        parsed = parse_qs(
            text, keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=most
        )
    except ValueError:
        raise MalformedBody(f"the body is not a form of at most {most} fields in UTF-8") from None
    return _gathered([(name, value) for name, values in parsed.items() for value in values])


def _gathered(pairs: list[tuple[str, str]]) -> Fields:
    """One value a name, the first one, but all of the texts; lines end as in JSON."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        plain = value.replace("\r\n", "\n")
        if name == LIST and name in fields:
            before = fields[name]
            fields[name] = [*(before if isinstance(before, list) else [before]), plain]
        else:
            fields.setdefault(name, plain)
    return fields
