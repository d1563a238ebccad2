"""Denies what nothing else guards: paths that belong to no dialect, and gRPC's other services.

Dialects check keys themselves: each has its own form of refusal, and LibreTranslate's key is in the
body. A new path therefore needs a key unless it is listed here as open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from inference.errors import Unauthorized
from serving.gateway.admission.auth import Keys
from serving.gateway.http.http_errors import ErrorRenderer

_OPEN = frozenset({"/", "/health", "/ready", "/v2/health/live", "/v2/health/ready"})
"""Probes, and the page, which asks for the key."""
_PAGE = "/ui/"
_OPEN_SERVICE = "/grpc.health.v1.Health/"


class KeyGate:
    """ASGI middleware that requires a key of every path, but for probes and the page.

    Args:
        keys: There is at least one.
        dialects: The routes that check the key themselves, each in its own form.
        render_error: Responses of refused requests.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, dialects: Iterable[BaseRoute], render_error: ErrorRenderer
    ) -> None:
        self._app = app
        self._keys = keys
        self._render_error = render_error
        routes = [route for route in dialects if isinstance(route, APIRoute)]
        self._passed = _OPEN | {route.path for route in routes if not route.param_convertors}
        self._patterns = [route.path_regex for route in routes if route.param_convertors]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer with 401."""
        if scope["type"] == "http" and not self._is_passed(scope["path"]):
            try:
                self._keys.check_header(Headers(scope=scope).get("authorization"))
            except Unauthorized as error:
                await self._render_error(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_passed(self, path: str) -> bool:
        return (
            path in self._passed
            or path.startswith(_PAGE)
            or any(pattern.match(path) for pattern in self._patterns)
        )


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Requires a key of every service but health and those that check it themselves.

    Args:
        keys: There is at least one.
        own: Full names of services whose methods check the key.
    """

    def __init__(self, keys: Keys, own: Iterable[str]) -> None:
        self._keys = keys
        self._passed = (_OPEN_SERVICE, *(f"/{name}/" for name in own))

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The method's handler, or one that refuses."""
        if not details.method.startswith(self._passed):
            try:
                self._keys.check_header(dict(details.invocation_metadata).get("authorization"))
            except Unauthorized as error:
                return _refusing(error.message)
        return await continuation(details)


def _refusing(message: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    return grpc.stream_stream_rpc_method_handler(refuse)
