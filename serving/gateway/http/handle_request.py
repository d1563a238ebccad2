"""The course of one HTTP request of a task, the same in every dialect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from inference.errors import InternalError, MethodNotAllowed, ServingError, UnknownRoute
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.http.dialect import Dialect, Route, StreamRenderer
from serving.gateway.http.http_errors import ErrorRenderer
from serving.gateway.http.middleware import DISCONNECTED, FAILURE
from serving.gateway.observability.metrics import Timings
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.service import Service, TaskRequest


class Router:
    """ASGI application: the route of a path and method. Paths without parameters come first.

    Starlette's own compares a path with one route after the other, and FastAPI's inspects each
    endpoint: that takes as long as the rest of a small request.

    Args:
        service: Serves the routes.
        render_error: Responses of requests that failed.
    """

    def __init__(
        self, routes: Iterable[Route], service: Service, render_error: ErrorRenderer
    ) -> None:
        self._service = service
        self._render_error = render_error
        self._paths: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = self._paths.setdefault(route.path, {})
            for method in route.methods:
                methods.setdefault(method, route)
        patterns = [path for path in self._paths if "{" in path]
        self._patterns = [(compile_path(path)[0], self._paths.pop(path)) for path in patterns]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; bugs are left to the outer `Middleware`."""
        methods = self._methods_of(scope)
        route = methods.get(scope["method"])
        if route is None:
            response = self._refuse(scope, methods)
        else:
            scope["route"] = route
            try:
                response = await route.handler(Request(scope, receive), self._service)
            except (ServingError, ValidationError) as error:
                response = self._render_error(scope, error)
        await response(scope, receive, send)

    def _methods_of(self, scope: Scope) -> Mapping[str, Route]:
        """The routes of a path by method; sets its parameters."""
        path = scope["path"]
        if (methods := self._paths.get(path)) is not None:
            return methods
        for pattern, methods in self._patterns:
            if (match := pattern.match(path)) is not None:
                scope["path_params"] = match.groupdict()
                return methods
        return {}

    def _refuse(self, scope: Scope, methods: Mapping[str, Route]) -> Response:
        if not methods:
            return self._render_error(scope, UnknownRoute("no such path: /docs lists them"))
        scope["route"] = next(iter(methods.values()))
        refusal = f"{scope['method']} is not for this path: /docs lists the methods"
        response = self._render_error(scope, MethodNotAllowed(refusal))
        response.headers["allow"] = ", ".join(sorted(methods))
        return response


async def respond(dialect: Dialect, request: Request, task: AnyTask, service: Service) -> Response:
    """Authorise, parse, serve and render one request.

    Raises:
        ServingError: it failed; `ErrorRenderer` makes a response of the error.
        ClientDisconnect: the client disconnected.
    """
    dialect.authorise(request.headers)
    parsed = await service.add_stored_terms(await dialect.parse(request, task, service))
    if parsed.streams:
        return await _begin_stream(dialect, request, parsed, service.stream(parsed))
    answer, timings = await unless_disconnected(
        request.scope, request.receive, service.answer(parsed)
    )
    response = dialect.render_answer(parsed, answer)
    times = _timing_headers(dialect, timings)
    response.raw_headers += [(name.encode(), value.encode()) for name, value in times.items()]
    return response


async def _begin_stream(
    dialect: Dialect, request: Request, parsed: TaskRequest, stream: ChunkStream
) -> Response:
    """The stream, once it has a first chunk: an error before it has a status of its own."""
    try:
        await unless_disconnected(request.scope, request.receive, stream.first())
    except BaseException:
        await stream.close()
        raise
    headers = _timing_headers(dialect, stream.timings)
    return EventStream(stream, dialect.render_stream(parsed), headers)


def _timing_headers(dialect: Dialect, timings: Timings | None) -> dict[str, str]:
    """Milliseconds, so that a slow response shows its own cause."""
    if timings is None or not dialect.shows_timings:
        return {}
    return {
        "x-tokenization-time": f"{timings.tokenization_s * 1000:.1f}",
        "x-queue-time": f"{timings.queue_s * 1000:.1f}",
        "x-inference-time": f"{timings.inference_s * 1000:.1f}",
    }


_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events
}
log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends chunks as they are produced; chunks that are ready together share one write.

    Args:
        headers: Of the response, beside those of every stream.
    """

    def __init__(
        self, stream: ChunkStream, renderer: StreamRenderer, headers: Mapping[str, str]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = renderer.media_type
        self._stream = stream
        self._renderer = renderer
        self.init_headers({**_HEADERS, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client disconnects: that ends the work."""
        try:
            await unless_disconnected(scope, receive, self._send(scope, send))
        finally:
            await self._stream.close()

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        try:
            async for chunks in self._stream.batches():
                body = self._renderer.chunks(chunks)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            last = self._renderer.end()
        except Exception as raised:  # the protocol's edge: the status has been sent
            error = _as_ours(raised)
            scope[FAILURE] = error.wire
            last = self._renderer.error(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _as_ours(error: Exception) -> ServingError:
    if isinstance(error, ServingError):
        return error
    log.error("bug in a stream", exc_info=error)
    return InternalError("the gateway failed: its log has the cause")


T = TypeVar("T")


async def unless_disconnected(scope: Scope, receive: Receive, work: Awaitable[T]) -> T:
    """The work's result; cancelled when the client disconnects.

    The work runs in the current task: a task of its own costs two more wake-ups, and one that waits
    for the client two as well, which the scope's future saves.

    Args:
        scope: The request's.
        receive: The request's, its body having been read.
        work: What to wait for.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    task = asyncio.current_task()
    assert task is not None
    is_disconnected = is_over = False

    def on_disconnect(disconnected: asyncio.Future[None]) -> None:
        nonlocal is_disconnected
        if disconnected.cancelled() or is_over:  # removed, and scheduled before
            return
        disconnected.exception()  # reading failed: disconnected as well
        is_disconnected = True
        task.cancel()

    by_server: asyncio.Future[None] | None = scope.get(DISCONNECTED)
    disconnected = by_server or asyncio.ensure_future(_await_disconnect(receive))
    disconnected.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if not is_disconnected or task.uncancel():  # also cancelled by others
            raise
        raise ClientDisconnect from None
    finally:
        is_over = True
        disconnected.remove_done_callback(on_disconnect)
        if disconnected is not by_server:
            disconnected.cancel()


async def _await_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
