"""What all routes do before and after their work, their errors, and their documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    ServingError,
    UnknownModel,
)
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.libretranslate.languages import Identifier
from serving.gateway.dialects.libretranslate.messages import FORM, Body, read_authorised, validate
from serving.gateway.http.bodies import MULTIPART
from serving.gateway.http.openapi import drop_null, json_content
from serving.gateway.http.router import RouteTable, json_error, unless_disconnected
from serving.gateway.requests.service import TIMEOUT_S, Service

TEXTS = "texts"
"""The field of the task's message that has the texts."""


class LibreTranslateError(BaseModel):
    """Body of every response with a status of 400 or more."""

    error: str


class LibreTranslateRoutes(RouteTable):
    """Base of the routes.

    Args:
        keys: Required of every request that translates or identifies, if there are any.
        identifier: Identifies languages.
    """

    error = LibreTranslateError

    def __init__(self, keys: Keys, identifier: Identifier) -> None:
        super().__init__(keys)
        self._identifier = identifier

    def render_error(self, error: ServingError) -> Response:
        """`{"error": "…"}` with LibreTranslate's status: 400 for every request that it refuses."""
        message = f"Slowdown: {error.message}" if isinstance(error, Overloaded) else error.message
        body = LibreTranslateError(error=message).model_dump_json()
        is_refused = isinstance(error, InvalidRequest | UnknownModel)
        is_too_large = isinstance(error, PayloadTooLarge)
        return json_error(error, body, 400 if is_refused and not is_too_large else None)


def with_name(error: ServingError, name: str, places: Sequence[int]) -> ServingError:
    """The error of a text, with the name that the text has in the request.

    Args:
        error: Names the text as `texts.N`.
        name: What the request calls its texts.
        places: Each text's place in the request; empty where the request has one text.
    """
    field, message = error.field, error.message
    if field is not None and field.partition(".")[0] == TEXTS:
        number = field.partition(".")[2]
        own = f"{name}.{places[int(number)]}" if number.isdecimal() and places else name
        message, field = message.replace(field, own), own
    return type(error)(message, field=field, retry_after_s=error.retry_after_s)


FINISH_REASON = "x-finish-reason"
"""Header of answers with translations: `length` where the limit of tokens cut one, else `stop`."""
STATUSES = (400, 413, 429, 500, 503, 504, 401, 403)
"""Of requests with a key."""
_REASON = {
    "description": "length: the limit of tokens cut a translation; else stop.",
    "schema": {"type": "string", "enum": ["stop", "length"]},
}
FINISHED: dict[int | str, dict[str, Any]] = {200: {"headers": {FINISH_REASON: _REASON}}}
"""Responses with the header."""
B = TypeVar("B", bound=Body)
T = TypeVar("T")


async def read_message(request: Request, message: type[B], service: Service, keys: Keys) -> B:
    """The message of a request, whose key is right.

    Raises:
        Unauthorized: it is not.
        InvalidRequest: the body cannot be read, or a field is not valid.
    """
    fields, _ = await read_authorised(request, service, keys)
    return validate(message, fields)


async def within_time(request: Request, service: Service, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, within the time of one request: the gateway's limit, and the client's.

    Raises:
        DeadlineExceeded: there is none by then.
        ClientDisconnect: the client disconnected.
    """
    limit_s = min(service.settings.request_timeout, TIMEOUT_S.get())
    try:
        async with asyncio.timeout(limit_s):
            return await unless_disconnected(request.scope, request.receive, work)
    except TimeoutError:
        raise DeadlineExceeded(
            f"no response within {limit_s:g} s: send a smaller request"
        ) from None


def respond(kind: Any, value: BaseModel | list[Any], reason: str | None = None) -> Response:
    """A value of this type as JSON, without what is not given.

    Args:
        reason: Why the translations ended, for the header.
    """
    content = TypeAdapter(kind).dump_json(value, by_alias=True, exclude_none=True)
    headers = {} if reason is None else {FINISH_REASON: reason}
    return Response(content, media_type="application/json", headers=headers)


def any_form(body: type[BaseModel]) -> dict[str, Any]:
    """The content of a body that is JSON or a form."""
    return json_content(body) | {kind: {"schema": form_of(body)} for kind in (FORM, MULTIPART)}


def form_of(body: type[BaseModel], *files: str) -> dict[str, Any]:
    """The message as a form, with further fields that are files."""
    schema = body.model_json_schema()
    properties = {name: drop_null(field) for name, field in schema["properties"].items()}
    properties |= {name: {"type": "string", "format": "binary"} for name in files}
    required = [*schema.get("required", ()), *files]
    return schema | {"properties": properties, "required": required}
