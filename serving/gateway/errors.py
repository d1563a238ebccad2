"""Every error as HTTP: one body (`triptych.messages.ErrorResponse`), never a stack trace."""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from serving.errors import (
    InternalError,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    TriptychError,
    UnknownRoute,
)
from triptych.messages import ErrorBody, ErrorResponse


def error_response(error: TriptychError) -> Response:
    """An error's status, headers and body."""
    body = ErrorBody(type=error.wire, message=error.message, field=error.field)
    headers = {"x-error-type": error.wire}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(
        ErrorResponse(error=body).model_dump_json(exclude_none=True),
        status_code=error.http_status,
        headers=headers,
        media_type="application/json",
    )


def from_validation(error: ValidationError | RequestValidationError) -> InvalidRequest:
    """What a message's schema found wrong, the first thing of it; never the user's text."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "invalid")
        return MalformedBody(f"the body is not JSON: {reason}")
    # Keys of a map are the user's text, so the map is named instead.
    place = first["loc"][:1] if "logit_bias" in first["loc"] else first["loc"]
    field = ".".join(str(part) for part in place) or None
    value = first.get("input")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    got = f", got {value}" if is_number and abs(value) < 1e15 else ""
    return InvalidRequest(f"{field or 'the body'}: {first['msg']}{got}", field=field)


def install_handlers(app: FastAPI) -> None:
    """Answer every exception that a route can raise; bugs are the `Edge`'s."""
    app.add_exception_handler(TriptychError, _triptych_error)
    app.add_exception_handler(ValidationError, _validation_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _framework_error)


async def _triptych_error(_: Request, error: Any) -> Response:
    return error_response(error)


async def _validation_error(_: Request, error: Any) -> Response:
    return error_response(from_validation(error))


async def _framework_error(request: Request, error: Any) -> Response:
    """What Starlette refuses by itself: paths, verbs, multipart bodies."""
    response = error_response(_of_status(error, request))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value  # 405 says which verbs are allowed
    return response


def _of_status(error: HTTPException, request: Request) -> TriptychError:
    if error.status_code == 404:
        return UnknownRoute("no such path: /docs lists them")
    if error.status_code == 405:
        return MethodNotAllowed(f"{request.method} is not for this path: /docs lists the verbs")
    if error.status_code == 400:
        return MalformedBody(f"the body cannot be read: {error.detail}")
    return InternalError("the gateway failed: its log says why")
