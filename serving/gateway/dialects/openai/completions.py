"""`POST /v1/completions`: prompts continued, by the models that serve `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from starlette.requests import Request

from inference.tasks.generate import TASK
from serving.gateway.dialects.all_or_nothing import AnyToken, ConvertedRequest, ResponseMessage
from serving.gateway.dialects.openai.common import (
    CompletionUsage,
    GenerationRequest,
    OpenAIEvents,
    OpenAIRoute,
    escape,
    response_fields,
)
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import (
    Chunk,
    Continuation,
    Generation,
    NewTokens,
    PromptLogprob,
    TokenLogprob,
    TopLogProbs,
    optional,
)
from triptych.tasks.generate import GenerateRequest

DEFAULT_TOKENS = 16
"""Generated where `max_tokens` is not given."""


def as_texts(value: object) -> object:
    """A text stands for a list of one; token ids are refused in words."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise ValueError("token ids are not served: give a text, or a list of texts")
    return value


def _refuse_suffix(value: str | None) -> None:
    if value is not None:
        raise ValueError("no served model inserts text before a suffix: leave suffix out")


_Texts = Annotated[list[str], Field(min_length=1)]
Texts = Annotated[_Texts, BeforeValidator(as_texts, json_schema_input_type=str | _Texts)]


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: Texts
    max_tokens: NewTokens | None = optional(
        f"Absent or null: {DEFAULT_TOKENS}, as in OpenAI's API."
    )
    logprobs: TopLogProbs | None = None
    echo: bool | None = None
    suffix: Annotated[str | None, AfterValidator(_refuse_suffix)] = optional(
        "Refused: no served model inserts text before a suffix."
    )


class Logprobs(ResponseMessage):
    """Log-probabilities of a choice, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    """Where each token begins in the text; tokens that share a character have its place."""


class CompletionChoice(ResponseMessage):
    """One output for one prompt; in a stream, what is added to it."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: Logprobs | None = None


class Completion(ResponseMessage):
    """A whole response, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


class CompletionEvents(OpenAIEvents):
    """`text_completion` events."""

    prefix = "cmpl"
    answer = Completion

    def choice(self, chunk: Chunk) -> CompletionChoice:
        """Its index is that of its prompt."""
        return CompletionChoice(
            index=chunk.index,
            text=chunk.text,
            finish_reason=chunk.finish_reason,
            logprobs=None if chunk.logprobs is None else _logprobs(chunk.logprobs),
        )


class CompletionsRoute(OpenAIRoute):
    """Completions."""

    path = "/v1/completions"
    task = TASK
    body = CompletionRequest
    answer = Completion
    summary = "Continue prompts, in the form of OpenAI's API."
    events = "`text_completion` events."
    stream = CompletionEvents
    renamed = {"prompts": "prompt", "max_new_tokens": "max_tokens"}

    def convert(self, body: CompletionRequest, request: Request, service: Service) -> TaskRequest:
        message = GenerateRequest(
            prompts=body.prompt,
            max_new_tokens=body.max_tokens or DEFAULT_TOKENS,
            logprobs=body.logprobs,
            echo=body.echo,
            **body.parameters,
        )
        return ConvertedRequest(TASK, message, self.path, body=body)

    def render(self, request: TaskRequest, response: TaskResponse) -> Completion:
        """A `text_completion`: the outputs of the first prompt, then those of the next one."""
        choices: list[CompletionChoice] = []
        for item in response.data:
            choices += _choices(item, len(choices))
        return Completion(
            **response_fields(CompletionEvents.prefix, response.model),
            choices=choices,
            usage=CompletionUsage.of(response.usage),
        )


def _choices(item: Generation, first: int) -> list[CompletionChoice]:
    """The outputs for one prompt.

    Args:
        first: Index of the first one.
    """
    echoed = item.prompt_logprobs or ()
    outputs: Sequence[Generation | Continuation] = item.alternatives or [item]
    return [
        CompletionChoice(
            index=first + number,
            text=output.text or "",
            finish_reason=output.finish_reason or "stop",
            logprobs=None if output.logprobs is None else _logprobs([*echoed, *output.logprobs]),
        )
        for number, output in enumerate(outputs)
    ]


def _logprobs(tokens: Sequence[TokenLogprob | PromptLogprob]) -> Logprobs:
    return Logprobs(
        tokens=list(map(_name, tokens)),
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[_alternatives(one) if one.top else None for one in tokens]
        if any(one.top for one in tokens)
        else None,
        text_offset=[one.text_offset or 0 for one in tokens],
    )


def _name(found: AnyToken) -> str:
    """A token's text; its bytes where it is a part of a character, as in OpenAI's API."""
    part = escape(found)
    return found.token if part is None else f"bytes:{part}"


def _alternatives(chosen: TokenLogprob | PromptLogprob) -> dict[str, float]:
    """The best tokens of a position by their names, of which several may be equal.

    The chosen token has its name, else the best one has it; others are `token_id:N`, as vLLM names
    tokens by their ids.
    """
    owners = {_name(top): top.token_id for top in reversed(chosen.top)}
    if any(top.token_id == chosen.token_id for top in chosen.top):
        owners[_name(chosen)] = chosen.token_id
    found = {}
    for top in chosen.top:
        name = _name(top)
        key = name if owners[name] == top.token_id else f"token_id:{top.token_id}"
        found[key] = top.logprob
    return found
