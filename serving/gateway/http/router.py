"""Dialects and their routes, and the course of one HTTP request: the same in every dialect."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from inference.errors import (
    InternalError,
    MethodNotAllowed,
    ServingError,
    Unauthorized,
    UnknownRoute,
)
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.observability.metrics import Timings
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse, from_validation
from triptych.messages import Chunk, ErrorResponse

FAILURE = "triptych.failure"
"""Key of the scope that has the name of the request's error."""
DISCONNECTED = "triptych.disconnected"
"""Key of the scope that has a future, done when the client disconnects; other servers set none."""

Handler: TypeAlias = Callable[[Request, Service], Awaitable[Response]]


class StreamRenderer(Protocol):
    """The form of one streamed response; it may keep state between chunks."""

    media_type: str

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """Chunks that are sent together."""
        ...

    def end(self) -> bytes:
        """The end of a stream that succeeded."""
        ...

    def error(self, error: ServingError) -> bytes:
        """The end of a stream that failed."""
        ...


@dataclass(frozen=True)
class Route:
    """One route, and how the OpenAPI document describes it.

    Attributes:
        path: May contain parameters.
        handler: Makes the response.
        summary: Of the document; by default the name.
        answer: Type of the response's body; None: `responses` describe it.
        statuses: Those of errors. With 401 the route requires a key, if there are any.
        methods: By default POST where there is a body, else GET; the document has the first one.
        content: Content type → what is documented of the request's body.
        parameters: Of the path and of headers.
        responses: Status → what is documented of it beside `statuses`.
        is_documented: Whether the document has the route.
    """

    path: str
    handler: Handler
    summary: str | None = None
    answer: Any = None
    statuses: Sequence[int] = ()
    methods: Sequence[str] = ()
    name: str | None = None
    description: str | None = None
    content: Mapping[str, Any] | None = None
    parameters: Sequence[Mapping[str, Any]] | None = None
    responses: Mapping[int | str, dict[str, Any]] = field(default_factory=dict)
    is_documented: bool = True

    def __post_init__(self) -> None:
        if not self.methods:
            object.__setattr__(self, "methods", ("GET",) if self.content is None else ("POST",))


class RouteTable(ABC):
    """One HTTP API, as the application sees it.

    Args:
        keys: Required of every request, if there are any.
    """

    error: ClassVar[type[BaseModel]] = ErrorResponse
    """Body of every response with a status of 400 or more."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    @abstractmethod
    def routes(self) -> Iterable[Route]:
        """The routes."""

    @abstractmethod
    def render_error(self, error: ServingError) -> Response:
        """A failed request."""

    def authorise(self, headers: Mapping[str, str]) -> None:
        """Check `Authorization: Bearer KEY`, before the body is read.

        Raises:
            Unauthorized: the request may not be served.
        """
        self._keys.check_header(headers.get("authorization"))

    def require_key(self, handler: Handler) -> Handler:
        """The handler behind a check of the key, before the body is read."""

        async def check(request: Request, service: Service) -> Response:
            self.authorise(request.headers)
            return await handler(request, service)

        return check


class Dialect(RouteTable):
    """One HTTP API whose requests are one of a task each: its routes call `respond`."""

    shows_timings: ClassVar[bool] = False
    """Whether responses have headers that show where their time went."""

    @abstractmethod
    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The task request of an HTTP request.

        Raises:
            ServingError: the body cannot be read.
            pydantic.ValidationError: a field is not valid.
        """

    @abstractmethod
    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """A complete response.

        Raises:
            ServingError: the dialect has no form for this answer.
        """

    @abstractmethod
    def render_stream(self, request: TaskRequest) -> StreamRenderer:
        """The form of a streamed response."""


def path_parameter(name: str, **schema: Any) -> dict[str, Any]:
    """The description of a parameter of a path."""
    described = {"type": "string", **schema}
    return {"name": name, "in": "path", "required": True, "schema": described}


_OF_NO_ROUTE = (UnknownRoute, MethodNotAllowed, Unauthorized)
"""Errors of paths that belong to no dialect, in the form of the one beside them."""


class ErrorRenderer:
    """Renders errors in the dialect that a route belongs to.

    Args:
        owners: Path of a route → its dialect.
        default: Dialect of all other paths, but for unknown ones beside those of one dialect.
    """

    def __init__(self, owners: Mapping[str, RouteTable], default: RouteTable) -> None:
        self._owners = owners
        self._default = default
        self._first_parts: dict[str, RouteTable] = {}
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
