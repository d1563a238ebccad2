"""The interface of dialects, and the routes that they are declared by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import ServingError
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
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


class Routes(Protocol):
    """One HTTP API, as the application sees it."""

    @property
    def error(self) -> type[BaseModel]:
        """Body of every response with a status of 400 or more."""
        ...

    def routes(self) -> Iterable[Route]:
        """The routes."""
        ...

    def render_error(self, error: ServingError) -> Response:
        """A failed request."""
        ...


class Dialect(Routes, Protocol):
    """One HTTP API whose requests are one of a task each: its routes call `respond`."""

    shows_timings: bool
    """Whether responses have headers that show where their time went."""

    def authorise(self, headers: Headers) -> None:
        """Check a request before its body is read.

        Raises:
            Unauthorized: it may not be served.
        """
        ...

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The task request of an HTTP request.

        Raises:
            ServingError: the body cannot be read.
            pydantic.ValidationError: a field is not valid.
        """
        ...

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """A complete response.

        Raises:
            ServingError: the dialect has no form for this answer.
        """
        ...

    def render_stream(self, request: TaskRequest) -> StreamRenderer:
        """The form of a streamed response."""
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
    """Base of dialects; implements `Routes`.

    Args:
        keys: Required of every request, if there are any.
    """

    error: ClassVar[type[BaseModel]] = ErrorResponse

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    @abstractmethod
    def routes(self) -> Iterable[Route]:
        """The routes."""

    @abstractmethod
    def render_error(self, error: ServingError) -> Response:
        """A failed request."""

    def authorise(self, headers: Mapping[str, str]) -> None:
        """Check `Authorization: Bearer KEY`."""
        self._keys.check_header(headers.get("authorization"))

    def keyed(self, handler: Handler) -> Handler:
        """The handler behind a check of the key, before the body is read."""

        async def check(request: Request, service: Service) -> Response:
            self.authorise(request.headers)
            return await handler(request, service)

        return check


def path_parameter(name: str, **schema: Any) -> dict[str, Any]:
    """The description of a parameter of a path."""
    described = {"type": "string", **schema}
    return {"name": name, "in": "path", "required": True, "schema": described}
