"""What the routes of OpenAI's API share: parameters, token counts, events of streams."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from inference.errors import ServingError
from inference.tasks.shared.items import error_of
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.dialects.all_or_nothing import (
    AnyToken,
    Closed,
    Open,
    WholeAnswers,
    is_part_of_character,
)
from serving.gateway.http.bodies import read_json
from serving.gateway.http.handle_request import respond
from serving.gateway.http.http_errors import json_error
from serving.gateway.http.openapi import SECURITY, errors, events
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import Chunk, Usage
from triptych.parameters import (
    Beams,
    LogitBias,
    MinP,
    NgramSize,
    Penalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    optional,
)
from triptych.tasks.generate import OneOrManyStops

_STATUSES = (400, 404, 413, 415, 422, 429, 500, 503, 504)


class StreamOptions(Closed):
    """What a stream carries."""

    defaults = {"include_obfuscation": (False, True)}  # without it events have no padding

    include_usage: bool | None = None


class GenerationRequest(Closed):
    """Base of requests for text: OpenAI's parameters, and extensions sent in `extra_body`."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Beams | None = None
    stop: OneOrManyStops | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = optional("Accepted and not used.")
    best_of: Beams | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    typical_p: TypicalP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    no_repeat_ngram_size: NgramSize | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What the task's message has under the same name."""
        names = GenerationRequest.model_fields.keys() - {"stream_options", "user"}
        return {name: getattr(self, name) for name in names}

    @property
    def includes_usage(self) -> bool:
        """Whether a stream's last event before the end has the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionUsage(Open):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> CompletionUsage:
        """The counts of a task's response."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )


@dataclass(frozen=True)
class StreamableRequest(TaskRequest):
    """A task request with what only these routes read."""

    includes_usage: bool = False
    """Whether a stream's last event before the end has the token counts."""


class OpenAIDialect(WholeAnswers):
    """One route; implements `Dialect`."""

    path: ClassVar[str]
    task: ClassVar[AnyTask]
    request: ClassVar[type[BaseModel]]
    response: ClassVar[type[BaseModel]]
    name: ClassVar[str]
    summary: ClassVar[str]
    events: ClassVar[str | None] = None
    """What a streamed response consists of; None: the route does not stream."""
    parameters: ClassVar[Mapping[str, str]] = {}
    """Field of the task's message → its name in this API, for errors."""

    def router(self, service: Service) -> APIRouter:
        """`POST` to the path."""
        router = APIRouter()

        async def endpoint(request: Request) -> Response:
            return await respond(self, request, self.task, service)

        reference = {"$ref": f"#/components/schemas/{self.request.__name__}"}
        body = {"content": {"application/json": {"schema": reference}}, "required": True}
        router.add_api_route(
            self.path,
            endpoint,
            methods=["POST"],
            name=self.name,
            summary=self.summary,
            response_model=self.response,
            responses=self._responses(),
            openapi_extra={"requestBody": body, **(SECURITY if self._keys.are_required else {})},
        )
        return router

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """See `Dialect.parse`."""
        return self.convert(await read_json(request, self.request, service), service)

    @abstractmethod
    def convert(self, body: Any, service: Service) -> TaskRequest:
        """The body in the task's terms."""

    @abstractmethod
    def answered(self, request: TaskRequest, response: TaskResponse) -> BaseModel:
        """The body of the response; see `WholeAnswers.dump_answer`."""

    def dump_answer(self, request: TaskRequest, response: TaskResponse) -> str:
        """See `WholeAnswers.dump_answer`."""
        return self.answered(request, response).model_dump_json()

    def render_error(self, error: ServingError) -> Response:
        """`{"error": {"message", "type", "param", "code"}}` with the error's status."""
        return json_error(error, error_body(error, self.parameters))

    def _responses(self) -> dict[int | str, dict[str, Any]]:
        """The statuses as other routes document them, with this API's body of an error."""
        described = errors(*((*_STATUSES, 401) if self._keys.are_required else _STATUSES))
        for response in described.values():
            response["model"] = CompletionErrorBody
        if self.events is not None:
            described[200] = events(self.events)
        return described


class Events(ABC):
    """Server-sent events of one response; implements `StreamRenderer`.

    Args:
        request: What is answered.
        parameters: See `OpenAIDialect.parameters`.
    """

    media_type = "text/event-stream"
    prefix: ClassVar[str]
    """Of the response's identifier."""

    def __init__(self, request: TaskRequest, parameters: Mapping[str, str]) -> None:
        assert isinstance(request, StreamableRequest)
        self._includes_usage = request.includes_usage
        self._parameters = parameters
        self.common = response_fields(self.prefix, request.message.model or "")

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """One event a chunk."""
        return b"".join(self._rendered(chunk) for chunk in chunks)

    def end(self) -> bytes:
        """`[DONE]`."""
        return b"data: [DONE]\n\n"

    def error(self, error: ServingError) -> bytes:
        """An event with the error, which OpenAI's clients raise."""
        return b"data: %b\n\n" % error_body(error, self._parameters).encode()

    @abstractmethod
    def event(self, chunk: Chunk) -> BaseModel:
        """The event of a chunk without an error."""

    @abstractmethod
    def usage_event(self, usage: CompletionUsage) -> BaseModel:
        """The event with the token counts."""

    def _rendered(self, chunk: Chunk) -> bytes:
        if chunk.error is not None:
            return self.error(error_of(chunk.error))
        events = [self.event(chunk)]
        if chunk.usage is not None and self._includes_usage:
            events.append(self.usage_event(CompletionUsage.of(chunk.usage)))
        return b"".join(b"data: %b\n\n" % event.model_dump_json().encode() for event in events)


def response_fields(prefix: str, model: str) -> dict[str, Any]:
    """What every response, or every event of one, begins with; the identifier is like `cmpl-…`."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def escaped(found: AnyToken) -> str | None:
    r"""The bytes of a token that ends or begins within a character, as `\xf0\x9f`; else None."""
    if not is_part_of_character(found):
        return None
    return "".join(f"\\x{byte:02x}" for byte in found.bytes)


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
