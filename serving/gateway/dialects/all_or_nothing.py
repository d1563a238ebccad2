"""What dialects of other APIs share: closed bodies, routes that succeed as a whole, tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import InvalidRequest, ServingError
from inference.tasks.shared.model_calls import Array, error_of
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.http.bodies import JSON, dump_vectors, read_json
from serving.gateway.http.openapi import TASK_ERRORS, events, json_content
from serving.gateway.http.router import Dialect, Route, StreamRenderer, respond
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import Chunk, PromptLogprob, TokenLogprob, TopToken

MAX_DIMENSIONS = 65_536
CUT_HEADER = "x-truncated-characters"
"""How many characters of a request's texts were cut off; absent where none were."""
AnyToken: TypeAlias = TokenLogprob | PromptLogprob | TopToken


class ResponseMessage(BaseModel):
    """Base of responses."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    @classmethod
    def copy_of(cls, found: object) -> Self:
        """Made of the attributes of the same names; an alias is the name of another one."""
        return cls.model_validate(found, from_attributes=True)


class SparseMessage(ResponseMessage):
    """Base of responses whose absent fields are left out."""

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


@dataclass(frozen=True)
class ConvertedRequest(TaskRequest):
    """A task request with the body that it was made of, on which the form of the answer depends."""

    body: Any = None


class TaskRoute(Dialect):
    """`POST` to one path, for one task; a request succeeds as a whole."""

    path: ClassVar[str]
    task: ClassVar[AnyTask]
    body: ClassVar[type[BaseModel]]
    answer: ClassVar[Any]
    """Type of the response's body."""
    summary: ClassVar[str]
    events: ClassVar[str | None] = None
    """What a streamed response consists of; None: the route does not stream."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Field of the task's message → its name in this API, for errors."""
    parameters: ClassVar[Sequence[Mapping[str, Any]] | None] = None

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._adapter: TypeAdapter[Any] = TypeAdapter(self.answer)

    @abstractmethod
    def convert(self, body: Any, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""

    @abstractmethod
    def render(self, request: TaskRequest, response: TaskResponse) -> object:
        """The body of the response, whose items have no errors.

        Raises:
            InvalidRequest: the answer cannot be given in the form that is requested.
        """

    def routes(self) -> list[Route]:
        name = self.path.removeprefix("/v1").removesuffix("/{model}").strip("/").replace("/", "_")
        route = Route(
            self.path,
            self._serve,
            self.summary,
            self.answer,
            TASK_ERRORS,
            name=name,
            content=self.content(),
            parameters=self.parameters,
            responses={} if self.events is None else {200: events(self.events)},
        )
        return [route]

    def content(self) -> dict[str, Any]:
        """Content type → what is documented of the request's body."""
        return json_content(self.body)

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body as JSON, converted."""
        return self.convert(await read_json(request, self.body, service), request, service)

    def results(self, data: Sequence[Any]) -> Sequence[Any]:
        """What has an error or was cut, each by itself: the response's items."""
        return data

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """The answer as JSON.

        Raises:
            ServingError: a result failed; the first one's error is that of the request.
        """
        results = self.results(response.data)
        check_each(results)
        cut = sum(getattr(one, "truncated_characters", None) or 0 for one in results)
        headers = {CUT_HEADER: str(cut)} if cut else None
        answer = self.render(request, response)
        if self.task.has_vectors:
            body = dump_vectors(answer, exclude_none=False)
        else:
            body = self._adapter.dump_json(answer)
        return Response(body, headers=headers, media_type=JSON)

    def render_stream(self, request: TaskRequest) -> StreamRenderer:
        """The form of a streamed response, of routes with `events`."""
        raise NotImplementedError

    async def _serve(self, request: Request, service: Service) -> Response:
        return await respond(self, request, self.task, service)


class Events(ABC):
    """Server-sent events of one response, each a message as JSON; implements `StreamRenderer`."""

    media_type = "text/event-stream"
    last = b""
    """The end of a stream that succeeded."""

    @abstractmethod
    def events(self, chunk: Chunk) -> Iterable[BaseModel]:
        """The events of a chunk without an error."""

    @abstractmethod
    def error_body(self, error: ServingError) -> BaseModel:
        """The event with an error, which the API's clients raise."""

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """The events of all chunks."""
        return b"".join(
            b"".join(map(_event, self.events(chunk)))
            if chunk.error is None
            else self.error(error_of(chunk.error))
            for chunk in chunks
        )

    def end(self) -> bytes:
        """`last`."""
        return self.last

    def error(self, error: ServingError) -> bytes:
        """The event with the error."""
        return _event(self.error_body(error))


def _event(message: BaseModel) -> bytes:
    return b"data: %b\n\n" % message.model_dump_json().encode()


def check_each(items: Iterable[Any]) -> None:
    """Refuse items of which one failed: a request succeeds as a whole or not at all.

    Raises:
        ServingError: the first error of an item.
    """
    for item in items:
        if item.error is not None:
            raise error_of(item.error)


def is_part_of_character(found: AnyToken) -> bool:
    """Whether a token begins or ends within a character, so that its text alone is U+FFFD."""
    try:
        bytes(found.bytes).decode()
    except UnicodeDecodeError:
        return True
    return False


def shorten(embedding: Array, dimensions: int | None) -> Array:
    """The first numbers of a vector, scaled to unit length again; all of them for None.

    Raises:
        InvalidRequest: more than it has.
    """
    if dimensions is None or dimensions == len(embedding):
        return embedding
    if dimensions > len(embedding):
        raise InvalidRequest(
            f"dimensions is {dimensions}: the model's embeddings have {len(embedding)}",
            field="dimensions",
        )
    vector = embedding[:dimensions].astype(np.float32)
    return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float64)
