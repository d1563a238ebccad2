"""Calls the POST routes of dialects without FastAPI's routing and dependencies.

FastAPI describes these routes, but their endpoints read the request themselves and return a
`Response`. Matching every route, solving dependencies that there are none of and the exit stacks
around them cost as much as the rest of the HTTP path of a small request.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.gateway.http.http_errors import ErrorRenderer


class DirectRoutes:
    """ASGI middleware; every other request goes to the application.

    Args:
        render_error: Responses of requests that failed.
    """

    def __init__(
        self, app: ASGIApp, routes: Iterable[BaseRoute], render_error: ErrorRenderer
    ) -> None:
        self._app = app
        self._render_error = render_error
        self._routes = {
            route.path: route
            for route in routes
            if isinstance(route, APIRoute)
            and route.methods == {"POST"}
            and not route.param_convertors  # paths with parameters are matched by the application
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; bugs are left to the outer `Middleware`."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if is_post else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        response = await self._response(route, Request(scope, receive))
        await response(scope, receive, send)

    async def _response(self, route: APIRoute, request: Request) -> Response:
        try:
            response: Response = await route.endpoint(request)
        except Exception as error:
            rendered = self._render_error.rendered(request, error)
            if rendered is None:
                raise
            return rendered
        return response
