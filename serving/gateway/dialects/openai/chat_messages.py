"""Requests and responses of chat completions, as far as this gateway serves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from inference.errors import InvalidRequest
from serving.gateway.dialects.all_or_nothing import ResponseMessage, SparseMessage
from serving.gateway.dialects.openai.common import CompletionUsage, GenerationRequest
from triptych.messages import MAX_CHOICES, ClosedMessage, NewTokens, Regex, TopLogProbs, optional
from triptych.messages import Choice as AllowedText
from triptych.tasks.chat import MAX_MESSAGES, Role

MAX_PARTS = 64


class TextPart(ClosedMessage):
    """Words of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(ClosedMessage):
    """An image."""

    url: str = Field(description="A data URI; an address, where the gateway reads those.")
    detail: Literal["auto", "low", "high"] | None = optional(
        "Accepted and not used: the model's size is."
    )


class ImagePart(ClosedMessage):
    """An image of a message; audio is not served."""

    type: Literal["image_url"]
    image_url: ImageUrl


def _as_parts(value: object) -> object:
    """A text stands for one part; other values are refused in words that fit both forms."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise ValueError("give a text, or a list of parts of the types text and image_url")
    kinds = [part.get("type") for part in value if isinstance(part, Mapping)]
    if any(isinstance(kind, str) and "video" in kind for kind in kinds):
        raise ValueError("videos are not read: send their frames as parts of the type image_url")
    return value


_Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
_Parts = Annotated[list[_Part], Field(min_length=1, max_length=MAX_PARTS)]


class CompletionMessage(ClosedMessage):
    """One message; parts of text are joined by line breaks."""

    role: Role
    content: Annotated[_Parts, BeforeValidator(_as_parts, json_schema_input_type=str | _Parts)]

    def write(self, place: str | None) -> str:
        """The content as one text; words beside words are in lines of their own.

        Args:
            place: What stands for an image; None leaves images out.
        """
        shown = [part for part in self.content if isinstance(part, TextPart) or place is not None]
        text = ""
        for before, part in zip([None, *shown], shown, strict=False):
            if isinstance(part, TextPart):
                text += ("\n" if isinstance(before, TextPart) else "") + part.text
            else:
                text += place or ""
        return text

    @property
    def images(self) -> list[str]:
        """The content's images: data URIs or addresses."""
        return [part.image_url.url for part in self.content if isinstance(part, ImagePart)]


class PlainText(ClosedMessage):
    """An answer of any form."""

    type: Literal["text"]
    text: ClassVar[str | None] = None


class JsonObject(ClosedMessage):
    """An answer that is a JSON object."""

    type: Literal["json_object"]
    text: ClassVar[str | None] = '{"type": "object"}'


class NamedSchema(ClosedMessage):
    """A JSON Schema; the answer is always valid under it, also where it is not `strict`."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(ClosedMessage):
    """An answer that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    @property
    def text(self) -> str | None:
        """The schema."""
        return json.dumps(self.json_schema.schema_)


ResponseFormat = PlainText | JsonObject | JsonSchemaFormat


class ChatCompletionRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    defaults = {
        "function_call": ("none", "auto"),
        "modalities": ([], ["text"]),
        "parallel_tool_calls": (False, True),
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "reasoning_effort": ("none",),
        "service_tier": ("auto", "default"),
        "tool_choice": ("none", "auto"),
        "verbosity": ("medium",),
        "web_search_options": (),  # an empty object asks for a search
    }

    messages: Annotated[list[CompletionMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: NewTokens | None = None
    max_tokens: NewTokens | None = optional("Older name of the above.")
    logprobs: bool | None = None
    top_logprobs: TopLogProbs | None = None
    response_format: ResponseFormat | None = Field(default=None, discriminator="type")
    choices: list[AllowedText] | None = Field(default=None, min_length=1, max_length=MAX_CHOICES)
    regex: Regex | None = None

    @property
    def new_tokens(self) -> int | None:
        """Limit of the answer's tokens.

        Raises:
            InvalidRequest: both of its names are given.
        """
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidRequest(
                "max_tokens is the older name of max_completion_tokens: give one of them",
                field="max_tokens",
            )
        return self.max_completion_tokens or self.max_tokens

    @property
    def schema_text(self) -> str | None:
        """The JSON Schema of `response_format`, if it has one."""
        return None if self.response_format is None else self.response_format.text


class TopLogprob(ResponseMessage):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenEntry(TopLogprob):
    """A generated token."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseMessage):
    """Log-probabilities of an answer."""

    content: list[TokenEntry]
    refusal: None = None


class AnswerMessage(ResponseMessage):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(ResponseMessage):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(ResponseMessage):
    """A whole response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class Delta(SparseMessage):
    """What a chunk adds to the answer; clients merge deltas, so absent fields are left out."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(ResponseMessage):
    """A chunk's share of the one answer."""

    index: int = 0
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletionChunk(ResponseMessage):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
