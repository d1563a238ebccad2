"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import ServingError
from serving.gateway.dialects.all_or_nothing import Open

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class CompletionError(Open):
    """The `error` of a failed request."""

    message: str
    type: str
    param: str | None
    code: str


class CompletionErrorBody(Open):
    """Body of every response with a status of 400 or more."""

    error: CompletionError


def error_body(error: ServingError, parameters: Mapping[str, str]) -> str:
    """The body of a failed request.

    Args:
        parameters: See `OpenAIDialect.parameters`.
    """
    status = error.http_status
    kind = "server_error" if status >= 500 else "invalid_request_error"
    made = CompletionError(
        message=error.message,
        type=_TYPES.get(status, kind),
        param=_parameter(error.field, parameters),
        code=_CODES.get(status, error.wire),
    )
    return CompletionErrorBody(error=made).model_dump_json()


def _parameter(field: str | None, parameters: Mapping[str, str]) -> str | None:
    if field is None:
        return None
    name, dot, rest = field.partition(".")
    return parameters.get(name, name) + dot + rest
