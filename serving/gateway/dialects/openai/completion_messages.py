"""Requests and responses of completions, as far as this gateway serves them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from serving.gateway.dialects.all_or_nothing import Open
from serving.gateway.dialects.openai.common import CompletionUsage, GenerationRequest
from triptych.parameters import NewTokens, TopLogProbs, optional

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


class Logprobs(Open):
    """Log-probabilities of a choice, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    """Where each token begins in the text; tokens that share a character have its place."""


class CompletionChoice(Open):
    """One output for one prompt; in a stream, what is added to it."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: Logprobs | None = None


class Completion(Open):
    """A whole response, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None
