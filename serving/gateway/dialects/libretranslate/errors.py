"""Errors as LibreTranslate answers them: `{"error": "…"}`, mostly with the status 400."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Response
from pydantic import BaseModel

from inference.errors import (
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    ServingError,
    UnknownModel,
)
from serving.gateway.http.http_errors import json_error

TEXTS = "texts"
"""The field of the task's message that has the texts."""


class LibreTranslateError(BaseModel):
    """Body of every response with a status of 400 or more."""

    error: str


def status_of(error: ServingError) -> int:
    """LibreTranslate's status: 400 for every request that it refuses."""
    if isinstance(error, PayloadTooLarge):
        return error.http_status
    return 400 if isinstance(error, InvalidRequest | UnknownModel) else error.http_status


def error_response(error: ServingError) -> Response:
    """The response of a failed request."""
    message = f"Slowdown: {error.message}" if isinstance(error, Overloaded) else error.message
    return json_error(error, LibreTranslateError(error=message).model_dump_json(), status_of(error))


def named(error: ServingError, name: str, places: Sequence[int]) -> ServingError:
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
