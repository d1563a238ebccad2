"""OpenAI's chat completions: `POST /v1/chat/completions`, for models with a chat template.

A model without one is answered with 404 and the code `model_not_chat`. Parameters mean what they
mean in the task; without sampling parameters, the checkpoint's own defaults hold.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import SecretStr
from starlette.datastructures import Headers

from serving.errors import InvalidRequest, ModelNotChat, ServingError
from serving.gateway.answers import Answer, TaskRequest, Timings
from serving.gateway.auth import check_key
from serving.gateway.dialects.bodies import read_json
from serving.gateway.dialects.openai_messages import (
    AnswerMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionError,
    CompletionErrorBody,
    CompletionUsage,
    Delta,
    TokenEntry,
    TopLogprob,
)
from serving.gateway.openapi import SECURITY, errors
from serving.gateway.respond import respond
from serving.gateway.service import Service
from serving.planning.served_task import AnyTask
from serving.tasks.chat import TASK
from triptych.messages import Chunk, TokenLogprob, Usage
from triptych.tasks.chat import ChatMessage, ChatRequest

ROUTE = "/v1/chat/completions"
_SAME_NAMES = (
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stream",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "best_of",
)
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_STATUSES = (400, 404, 413, 422, 429, 500, 503, 504)


@dataclass(frozen=True)
class CompletionTaskRequest(TaskRequest):
    """A task request with what only this dialect reads."""

    includes_usage: bool = False
    """Whether a stream's last chunk has the token counts."""


class ChunkEvents:
    """Server-sent events of one answer.

    Args:
        model: Name in the chunks.
        includes_usage: Whether the last event before the end has the token counts.
    """

    media_type = "text/event-stream"

    def __init__(self, model: str, *, includes_usage: bool) -> None:
        self._id, self._created, self._model = _new_id(), int(time.time()), model
        self._includes_usage = includes_usage
        self._has_begun = False

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """One event a chunk; the first one also has the role."""
        return b"".join(self._event(chunk) for chunk in chunks)

    def end(self) -> bytes:
        """`[DONE]`."""
        return b"data: [DONE]\n\n"

    def error(self, error: ServingError) -> bytes:
        """An event with the error, which OpenAI's clients raise."""
        return b"data: %b\n\n" % _error_body(error).encode()

    def _event(self, chunk: Chunk) -> bytes:
        if chunk.error is not None:
            failed = InvalidRequest(chunk.error.message, field=chunk.error.field)
            return self.error(failed)
        role: Any = None if self._has_begun else "assistant"
        self._has_begun = True
        choice = ChunkChoice(
            delta=Delta(role=role, content=chunk.text),
            finish_reason=chunk.finish_reason,
            logprobs=_logprobs(chunk.logprobs),
        )
        events = self._data([choice])
        if chunk.usage is not None and self._includes_usage:
            events += self._data([], _usage(chunk.usage))
        return events

    def _data(self, choices: list[ChunkChoice], usage: CompletionUsage | None = None) -> bytes:
        event = ChatCompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )
        return b"data: %b\n\n" % event.model_dump_json().encode()


class OpenAIChatDialect:
    """The one route.

    Args:
        key: Required of every request, if given.
    """

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key

    def router(self, service: Service) -> APIRouter:
        """`POST /v1/chat/completions`."""
        router = APIRouter()

        async def complete(request: Request) -> Response:
            return await respond(self, request, TASK, service)

        statuses = (*_STATUSES, 401) if self._key else _STATUSES
        router.add_api_route(
            ROUTE,
            complete,
            methods=["POST"],
            name="chat_completions",
            summary="Answer a conversation, in the form of OpenAI's API.",
            response_model=ChatCompletion,
            responses=_responses(statuses),
            openapi_extra={"requestBody": _body(), **(SECURITY if self._key else {})},
        )
        return router

    def authorise(self, headers: Headers) -> None:
        """Check `Authorization: Bearer KEY`."""
        check_key(headers.get("authorization"), self._key)

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body in the task's terms.

        Raises:
            ModelNotChat: the model is served, but for other tasks.
        """
        body = await read_json(request, ChatCompletionRequest, service)
        _check_model(body.model, service)
        options = body.stream_options
        includes_usage = bool(options and options.include_usage)
        return CompletionTaskRequest(task, _message(body), ROUTE, includes_usage=includes_usage)

    def render_answer(self, request: TaskRequest, answer: Answer) -> Response:
        """A `chat.completion`."""
        response = answer.response
        (item,) = response.data
        if item.error is not None:
            return self.render_error(InvalidRequest(item.error.message, field=item.error.field))
        outputs = item.alternatives or [item]
        choices = [
            Choice(
                index=index,
                message=AnswerMessage(content=output.text or ""),
                finish_reason=output.finish_reason or "stop",
                logprobs=_logprobs(output.logprobs),
            )
            for index, output in enumerate(outputs)
        ]
        completion = ChatCompletion(
            id=_new_id(),
            created=int(time.time()),
            model=response.model,
            choices=choices,
            usage=_usage(response.usage),
        )
        return Response(completion.model_dump_json(), media_type="application/json")

    def render_stream(
        self, request: TaskRequest, timings: Timings | None
    ) -> tuple[ChunkEvents, dict[str, str]]:
        """`chat.completion.chunk` events."""
        assert isinstance(request, CompletionTaskRequest)
        model = request.message.model or ""
        return ChunkEvents(model, includes_usage=request.includes_usage), dict(_STREAM_HEADERS)

    def render_error(self, error: ServingError) -> Response:
        """`{"error": {"message", "type", "param", "code"}}` with the error's status."""
        headers = {}
        if error.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after_s))
        if error.http_status == 413:
            headers["connection"] = "close"  # the rest of the body is not read
        return Response(
            _error_body(error),
            status_code=error.http_status,
            headers=headers,
            media_type="application/json",
        )


def _message(body: ChatCompletionRequest) -> ChatRequest:
    """The task's message.

    Raises:
        InvalidRequest: fields that exclude each other.
    """
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest(
            "max_tokens is the older name of max_completion_tokens: give one of them",
            field="max_tokens",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", field="top_logprobs")
    fields = {name: getattr(body, name) for name in _SAME_NAMES}
    return ChatRequest(
        model=body.model,
        messages=[ChatMessage(role=one.role, content=one.text) for one in body.messages],
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **fields,
    )


def _check_model(name: str, service: Service) -> None:
    """Raises ModelNotChat where a served model has no chat template; others the catalog refuses."""
    model = next((one for one in service.catalog.models if one.name == name), None)
    if model is not None and TASK.name not in model.sections:
        raise ModelNotChat(
            f"{name} has no chat template: send prompts to /v1/generate, or choose a model whose "
            f"tasks in /v1/models include {TASK.name}",
            field="model",
        )


def _logprobs(tokens: Iterable[TokenLogprob] | None) -> ChoiceLogprobs | None:
    if tokens is None:
        return None
    return ChoiceLogprobs(
        content=[
            TokenEntry(
                token=one.token,
                logprob=one.logprob,
                bytes=list(one.token.encode()),
                top_logprobs=[
                    TopLogprob(token=top.token, logprob=top.logprob, bytes=list(top.token.encode()))
                    for top in one.top
                ],
            )
            for one in tokens
        ]
    )


def _usage(usage: Usage) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _error_body(error: ServingError) -> str:
    status = error.http_status
    kind = "server_error" if status >= 500 else "invalid_request_error"
    made = CompletionError(
        message=error.message,
        type=_TYPES.get(status, kind),
        param=error.field,
        code=_CODES.get(status, error.wire),
    )
    return CompletionErrorBody(error=made).model_dump_json()


def _responses(statuses: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """The statuses as other routes document them, with this dialect's body of an error."""
    described = errors(*statuses)
    for response in described.values():
        response["model"] = CompletionErrorBody
    events = {"schema": {"type": "string", "description": "`chat.completion.chunk` events."}}
    described[200] = {
        "content": {"text/event-stream": events},
        "description": "The completion, or its chunks.",
    }
    return described


def _body() -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{ChatCompletionRequest.__name__}"}
    return {"content": {"application/json": {"schema": reference}}, "required": True}


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
