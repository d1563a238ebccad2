"""A chat completion about an image, as a request for a caption: for captioners.

Their checkpoints have no chat template, and hold no conversation: one user message with one image,
whose words are the first ones of the caption.
"""

from __future__ import annotations

from inference.errors import InvalidRequest
from inference.tasks.caption import TASK
from inference.tasks.chat import TASK as CHAT
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.dialects.openai.chat_messages import ChatCompletionRequest, PlainText
from serving.gateway.dialects.openai.common import GenerationRequest
from triptych.parameters import GenerationParameters
from triptych.tasks.caption import CaptionRequest

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
    return TASK.name in model.sections and CHAT.name not in model.sections


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
        prompt=first.written(None) or None,
        max_new_tokens=body.new_tokens,
        stream=body.stream,
        **given,
    )
