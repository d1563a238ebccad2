"""What the routes of OpenAI's API share: parameters, token counts, events of streams."""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel
from starlette.responses import Response

from inference.errors import ServingError
from serving.gateway.dialects.all_or_nothing import (
    AnyToken,
    ConvertedRequest,
    Events,
    ResponseMessage,
    TaskRoute,
    is_part_of_character,
)
from serving.gateway.http.router import json_error
from serving.gateway.requests.service import TaskRequest
from triptych.messages import (
    Beams,
    Chunk,
    ClosedMessage,
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
    Usage,
    optional,
)
from triptych.tasks.generate import OneOrManyStops


class StreamOptions(ClosedMessage):
    """What a stream carries."""

    defaults = {"include_obfuscation": (False, True)}  # without it events have no padding

    include_usage: bool | None = None


class GenerationRequest(ClosedMessage):
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


class CompletionUsage(ResponseMessage):
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


_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class CompletionError(ResponseMessage):
    """The `error` of a failed request."""

    message: str
    type: str
    param: str | None
    code: str


class CompletionErrorBody(ResponseMessage):
    """Body of every response with a status of 400 or more."""

    error: CompletionError


class OpenAIRoute(TaskRoute):
    """One route.

    Attributes:
        stream: The form of a streamed response, if there are any.
    """

    error = CompletionErrorBody
    stream: ClassVar[type[OpenAIEvents]]

    def render_stream(self, request: TaskRequest) -> OpenAIEvents:
        return self.stream(request, self.renamed)

    def render_error(self, error: ServingError) -> Response:
        """`{"error": {"message", "type", "param", "code"}}` with the error's status."""
        return json_error(error, error_body(error, self.renamed).model_dump_json())


class OpenAIEvents(Events):
    """Events of one response.

    Args:
        request: What is answered.
        renamed: See `TaskRoute.renamed`.
    """

    last = b"data: [DONE]\n\n"
    prefix: ClassVar[str]
    """Of the response's identifier."""
    answer: ClassVar[Callable[..., BaseModel]]
    """Makes an event."""

    def __init__(self, request: TaskRequest, renamed: Mapping[str, str]) -> None:
        assert isinstance(request, ConvertedRequest)
        self._includes_usage = request.body.includes_usage
        self._renamed = renamed
        self._common = response_fields(self.prefix, request.message.model or "")

    @abstractmethod
    def choice(self, chunk: Chunk) -> BaseModel:
        """The only choice of a chunk's event."""

    def events(self, chunk: Chunk) -> Iterator[BaseModel]:
        """One event, and one with the token counts and no choice if they are requested."""
        yield self.answer(**self._common, choices=[self.choice(chunk)])
        if chunk.usage is not None and self._includes_usage:
            usage = CompletionUsage.of(chunk.usage)
            yield self.answer(**self._common, choices=[], usage=usage)

    def error_body(self, error: ServingError) -> CompletionErrorBody:
        return error_body(error, self._renamed)


def response_fields(prefix: str, model: str) -> dict[str, Any]:
    """What every response, or every event of one, begins with; the identifier is like `cmpl-…`."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}


def escape(found: AnyToken) -> str | None:
    r"""The bytes of a token that ends or begins within a character, as `\xf0\x9f`; else None."""
    if not is_part_of_character(found):
        return None
    return "".join(f"\\x{byte:02x}" for byte in found.bytes)


def error_body(error: ServingError, renamed: Mapping[str, str]) -> CompletionErrorBody:
    """The body of a failed request.

    Args:
        renamed: See `TaskRoute.renamed`.
    """
    status = error.http_status
    name, dot, rest = (error.field or "").partition(".")
    kind = "server_error" if status >= 500 else "invalid_request_error"
    made = CompletionError(
        message=error.message,
        type=_TYPES.get(status, kind),
        param=None if error.field is None else renamed.get(name, name) + dot + rest,
        code=_CODES.get(status, error.wire),
    )
    return CompletionErrorBody(error=made)
