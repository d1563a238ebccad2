"""Exceptions as HTTP responses, in the dialect of the request's route; never a stack trace."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Scope

from inference.errors import MethodNotAllowed, ServingError, Unauthorized, UnknownRoute
from serving.gateway.http.dialect import Routes
from serving.gateway.http.dialect import FAILURE
from serving.gateway.requests.service import from_validation

_OF_NO_ROUTE = (UnknownRoute, MethodNotAllowed, Unauthorized)
"""Errors of paths that belong to no dialect, in the form of the one beside them."""


class ErrorRenderer:
    """Renders errors in the dialect that a route belongs to.

    Args:
        owners: Path of a route → its dialect.
        default: Dialect of all other paths, but for unknown ones beside those of one dialect.
    """

    def __init__(self, owners: Mapping[str, Routes], default: Routes) -> None:
        self._owners = owners
        self._default = default
        self._first_parts: dict[str, Routes] = {}
        """First part of a path → the dialect of paths below it that no route has."""
        for path, owner in owners.items():
            first = _first_part(path)
            if owner is default or first not in self._first_parts:
                self._first_parts[first] = owner

    def __call__(self, scope: Scope, error: ServingError | ValidationError) -> Response:
        """The response of an error; its name goes to the log line and metrics."""
        if isinstance(error, ValidationError):
            error = from_validation(error)
        scope[FAILURE] = error.wire
        owner = self._owners.get(getattr(scope.get("route"), "path", ""))
        if owner is None and isinstance(error, _OF_NO_ROUTE):
            owner = self._first_parts.get(_first_part(scope["path"]))
        return (owner or self._default).render_error(error)


def json_error(error: ServingError, body: str | bytes, status: int | None = None) -> Response:
    """The response of an error with a dialect's body; the status is the error's by default."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(
        body,
        status_code=status or error.http_status,
        headers=headers,
        media_type="application/json",
    )


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if "/" in path else ""
