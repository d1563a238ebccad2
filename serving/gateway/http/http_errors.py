"""Exceptions as HTTP responses, in the dialect of the request's route; never a stack trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from inference.errors import (
    InternalError,
    MalformedBody,
    MethodNotAllowed,
    ServingError,
    Unauthorized,
    UnknownRoute,
)
from serving.gateway.http.dialect import Routes
from serving.gateway.http.middleware import FAILURE
from serving.gateway.requests.request_errors import from_validation

_OF_NO_ROUTE = (UnknownRoute, MethodNotAllowed, Unauthorized)
"""Errors of paths that belong to no dialect, in the form of the one beside them."""


class ErrorRenderer:
    """Renders errors in the dialect that a route belongs to.

    Args:
        owners: Path of a route → its dialect.
        default: Dialect of all other paths, but for unknown ones beside those of one dialect.
        routes: All routes of the application.
    """

    def __init__(
        self, owners: Mapping[str, Routes], default: Routes, routes: Iterable[BaseRoute]
    ) -> None:
        self._owners = owners
        self._default = default
        self._first_parts: dict[str, Routes] = {}
        """First part of a path → the dialect of paths below it that no route has."""
        for path, owner in owners.items():
            first = _first_part(path)
            if owner is default or first not in self._first_parts:
                self._first_parts[first] = owner
        self._methods: dict[str, set[str]] = {}
        for route in routes:
            if isinstance(route, Route):
                self._methods.setdefault(route.path, set()).update(route.methods or ())

    def __call__(self, scope: Scope, error: ServingError) -> Response:
        """The response of an error; its name goes to the log line and metrics."""
        scope[FAILURE] = error.wire
        owner = self._owners.get(getattr(scope.get("route"), "path", ""))
        if owner is None and isinstance(error, _OF_NO_ROUTE):
            owner = self._first_parts.get(_first_part(scope["path"]))
        return (owner or self._default).render_error(error)

    def rendered(self, request: Request, error: Exception) -> Response | None:
        """The response of an exception that a route can raise; None for bugs."""
        if isinstance(error, ServingError):
            return self(request.scope, error)
        if isinstance(error, ValidationError | RequestValidationError):
            return self(request.scope, from_validation(error))
        if not isinstance(error, HTTPException):
            return None
        # Refusals of Starlette: paths, methods, multipart bodies.
        response = self(request.scope, _of_status(error, request))
        for name, value in (error.headers or {}).items():
            is_allow = name.lower() == "allow"
            response.headers[name] = self._allowed(request, value) if is_allow else value
        return response

    def _allowed(self, request: Request, found: str) -> str:
        """The methods of a path, of which Starlette's refusal lists those of one route."""
        path = getattr(request.scope.get("route"), "path", "")
        return ", ".join(sorted({*found.split(", "), *self._methods.get(path, ())}))

    def install(self, app: FastAPI) -> None:
        """Handle every exception that a route can raise; bugs are left to the `Middleware`."""

        async def handle(request: Request, error: Exception) -> Response:
            response = self.rendered(request, error)
            assert response is not None, "a handler of another kind of exception"
            return response

        for kind in (ServingError, ValidationError, RequestValidationError, HTTPException):
            app.add_exception_handler(kind, handle)


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


def _of_status(error: HTTPException, request: Request) -> ServingError:
    if error.status_code == 404:
        return UnknownRoute("no such path: /docs lists them")
    if error.status_code == 405:
        return MethodNotAllowed(f"{request.method} is not for this path: /docs lists the methods")
    if error.status_code == 400:
        return MalformedBody(f"the body cannot be read: {error.detail}")
    return InternalError("the gateway failed: its log has the cause")
