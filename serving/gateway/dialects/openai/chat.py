"""`POST /v1/chat/completions`, for models with a chat template and for captioners.

A model that is neither is answered with 404 and the code `model_not_chat`.

Their checkpoints have no chat template, and hold no conversation: one user message with one image,
whose words are the first ones of the caption.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from inference.errors import InvalidRequest, ModelNotChat
from inference.tasks.caption import TASK as CAPTION
from inference.tasks.chat import TASK as CHAT
from inference.tasks.generation.image_places import ImagePlaces
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.dialects.all_or_nothing import ConvertedRequest
from serving.gateway.dialects.openai.chat_messages import (
    AnswerMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    PlainText,
    TokenEntry,
    TopLogprob,
)
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
    MAX_SCHEMA_CHARACTERS,
    Chunk,
    GenerationParameters,
    TokenLogprob,
    TopToken,
)
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.chat import ChatMessage, ChatRequest

_SAMPLING = GenerationRequest.model_fields.keys() & GenerationParameters.model_fields.keys()
_READ = {
    *("model", "messages", "user", "stream", "stream_options"),
    *("max_completion_tokens", "max_tokens"),
}
_NEUTRAL: dict[str, object] = {
    "n": 1,
    "best_of": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": PlainText(type="text"),
}
"""Values that change nothing. A caption is drawn where another parameter of sampling is given."""


def is_captioner(model: LoadedModel) -> bool:
    """Whether a model describes images, and has no chat template."""
    return CAPTION.name in model.sections and CHAT.name not in model.sections


def caption_message(body: ChatCompletionRequest) -> CaptionRequest:
    """The request for a caption.

    Raises:
        InvalidRequest: another conversation than one image, or a parameter that captions lack.
    """
    (first, *others), name = body.messages, body.model
    if others or first.role != "user" or len(first.images) != 1:
        raise InvalidRequest(
            f"{name} describes one image: send one user message with one image_url part",
            field="messages",
        )
    given = {
        field: value
        for field in sorted(body.model_fields_set - _READ)
        if (value := getattr(body, field)) is not None and value != _NEUTRAL.get(field)
    }
    for field in given.keys() - _SAMPLING:
        raise InvalidRequest(f"{field} has no effect on captions: leave it out", field=field)
    return CaptionRequest(
        model=name,
        images=first.images,
        prompt=first.write(None) or None,
        max_new_tokens=body.new_tokens,
        stream=body.stream,
        **given,
    )


class ChunkEvents(OpenAIEvents):
    """`chat.completion.chunk` events."""

    prefix = "chatcmpl"
    answer = ChatCompletionChunk
    _has_begun = False

    def choice(self, chunk: Chunk) -> ChunkChoice:
        """What is added; the first one also has the role."""
        role: Any = None if self._has_begun else "assistant"
        self._has_begun = True
        return ChunkChoice(
            delta=Delta(role=role, content=chunk.text),
            finish_reason=chunk.finish_reason,
            logprobs=_logprobs(chunk.logprobs),
        )


class ChatRoute(OpenAIRoute):
    """Chat completions."""

    path = "/v1/chat/completions"
    task = CHAT
    body = ChatCompletionRequest
    answer = ChatCompletion
    summary = "Answer a conversation, in the form of OpenAI's API."
    events = "`chat.completion.chunk` events."
    stream = ChunkEvents
    renamed = {
        "max_new_tokens": "max_completion_tokens",
        "json_schema": "response_format",
        "images": "messages",
        "prompt": "messages",
    }

    def convert(
        self, body: ChatCompletionRequest, request: Request, service: Service
    ) -> TaskRequest:
        """The conversation, or a request for a caption.

        Raises:
            ModelNotChat: the model is served, but for other tasks.
            InvalidRequest: the model reads no images, or fields exclude each other.
        """
        images = [image for message in body.messages for image in message.images]
        model = next((one for one in service.catalog.models if one.name == body.model), None)
        if model is not None and images and is_captioner(model):
            caption = caption_message(body)
            return ConvertedRequest(CAPTION, caption, self.path, images=images, body=body)
        _check_model(model)
        places = None if model is None else CHAT.places(model)
        if images and places is None:
            raise InvalidRequest(f"{body.model} reads no images", field="messages")
        message = _message(body, places)
        return ConvertedRequest(CHAT, message, self.path, images=images, body=body)

    def render(self, request: TaskRequest, response: TaskResponse) -> ChatCompletion:
        (item,) = response.data
        has_logprobs = request.task is not CAPTION
        choices = [
            Choice(
                index=index,
                message=AnswerMessage(content=output.text or ""),
                finish_reason=output.finish_reason or "stop",
                logprobs=_logprobs(output.logprobs) if has_logprobs else None,
            )
            for index, output in enumerate(item.alternatives or [item])
        ]
        return ChatCompletion(
            **response_fields(ChunkEvents.prefix, response.model),
            choices=choices,
            usage=CompletionUsage.of(response.usage),
        )


def _message(body: ChatCompletionRequest, places: ImagePlaces | None) -> ChatRequest:
    """The task's message.

    Args:
        places: How conversations hold images.

    Raises:
        InvalidRequest: fields that exclude each other.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", field="top_logprobs")
    place = None if places is None else places.place
    return ChatRequest(
        messages=[ChatMessage(role=one.role, content=one.write(place)) for one in body.messages],
        images=[image for message in body.messages for image in message.images] or None,
        max_new_tokens=body.new_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **_structure(body),
        **body.parameters,
    )


def _structure(body: ChatCompletionRequest) -> dict[str, Any]:
    """What the answer must match.

    Raises:
        InvalidRequest: several of its fields are given, or the schema is too long.
    """
    given = {"choices": body.choices, "regex": body.regex, "json_schema": body.schema_text}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(
            "response_format, choices and regex exclude each other: give one of them",
            field="response_format",
        )
    if len(body.schema_text or "") > MAX_SCHEMA_CHARACTERS:
        raise InvalidRequest(
            f"the schema is longer than {MAX_SCHEMA_CHARACTERS} characters: shorten it",
            field="response_format",
        )
    return given


def _check_model(model: LoadedModel | None) -> None:
    """Raises ModelNotChat where a served model has no chat template; others the catalog refuses."""
    if model is None or CHAT.name in model.sections:
        return
    if is_captioner(model):
        raise ModelNotChat(
            f"{model.name} has no chat template: send it one image_url part to be described",
            field="model",
        )
    raise ModelNotChat(
        f"{model.name} has no chat template: send prompts to /v1/completions, or choose a model "
        f"whose tasks in /v1/models include {CHAT.name}",
        field="model",
    )


def _logprobs(tokens: Iterable[TokenLogprob] | None) -> ChoiceLogprobs | None:
    if tokens is None:
        return None
    return ChoiceLogprobs(
        content=[
            TokenEntry(**_entry(one), top_logprobs=[TopLogprob(**_entry(top)) for top in one.top])
            for one in tokens
        ]
    )


def _entry(found: TokenLogprob | TopToken) -> dict[str, Any]:
    token = escape(found) or found.token
    return {"token": token, "logprob": found.logprob, "bytes": found.bytes}
