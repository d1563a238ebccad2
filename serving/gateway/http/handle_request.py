"""The course of one HTTP request of a task, the same in every dialect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from inference.errors import InternalError, ServingError
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.http.dialect import Dialect, StreamRenderer
from serving.gateway.http.http_errors import ErrorRenderer
from serving.gateway.http.middleware import DISCONNECTED, FAILURE
from serving.gateway.observability.metrics import Timings
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.service import Service, TaskRequest


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


async def respond(dialect: Dialect, request: Request, task: AnyTask, service: Service) -> Response:
    """Authorise, parse, serve and render one request.

    Raises:
        ServingError: it failed; `ErrorRenderer` makes a response of the error.
        ClientDisconnect: the client disconnected.
    """
    dialect.authorise(request.headers)
    parsed = await service.completed(await dialect.parse(request, task, service))
    if parsed.streams:
        return await _streamed(dialect, request, parsed, service.stream(parsed))
    answer, timings = await unless_disconnected(
        request.scope, request.receive, service.answer(parsed)
    )
    response = dialect.render_answer(parsed, answer)
    response.headers.update(_timing_headers(dialect, timings))
    return response


async def _streamed(
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

    def on_disconnect(watching: asyncio.Future[None]) -> None:
        nonlocal is_disconnected
        if (
            watching.cancelled() or is_over
        ):  # is called after its removal if it was scheduled before
            return
        watching.exception()  # reading failed: disconnected as well
        is_disconnected = True
        task.cancel()

    told: asyncio.Future[None] | None = scope.get(DISCONNECTED)
    watching = asyncio.ensure_future(_disconnected(receive)) if told is None else told
    watching.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if not is_disconnected or task.uncancel():  # also cancelled by others
            raise
        raise ClientDisconnect from None
    finally:
        is_over = True
        watching.remove_done_callback(on_disconnect)
        if watching is not told:
            watching.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
