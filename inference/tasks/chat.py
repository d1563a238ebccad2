"""`chat`: a conversation laid out by the checkpoint's template, and continued as in `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from inference.engine.codec import PROMPT_IDS, SOURCE_IDS
from inference.errors import InvalidRequest, TooLong
from inference.processing.prepared_image import PreparedImage
from inference.processing.templates.chat_template import ChatTemplate
from inference.tasks.generation.continuation import ContinuationPlan, rows_of
from inference.tasks.generation.image_places import ImagePlaces
from inference.tasks.generation.overrides import add_structure, sampling_overrides
from inference.tasks.generation.prompt_task import (
    IMAGE_PROMPTS,
    PromptPixels,
    PromptTask,
    held_images,
)
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.needs import GENERATOR, TOKENIZER
from inference.tasks.shared.served_task import TaskConfig
from triptych.tasks import chat as declared
from triptych.tasks.chat import ChatRequest, ChatResponse

_COMPILED = 64  # templates, each of a few kilobytes
_FIELD = "messages"
_MESSAGE_SIZE = 64
"""Work for one message of no length, in characters."""
_TEMPLATE_SIZE = 8192
"""Work for one rendering, in characters: what a template does, however short the messages, is the
checkpoint's choice, so that it never runs on the event loop."""


class ChatSection(TaskConfig):
    """The checkpoint's chat template."""

    template: str
    """Jinja source."""
    special_tokens: Mapping[str, str] = {}
    """Names that the template may use, e.g. `bos_token`."""
    images: ImagePlaces | None = None
    """How a conversation holds images: as parts of messages, for which the template writes places.
    None: a message is a text."""


class Chat(PromptTask[ChatRequest, ChatSection]):
    """Conversations."""

    declaration = declared.TASK
    section = ChatSection
    needs = (GENERATOR, TOKENIZER, IMAGE_PROMPTS)

    def prepare(
        self, request: ChatRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> ContinuationPlan:
        stops = tuple(request.stop or ())
        options = sampling_overrides(request, model, stops=stops, logprobs=request.logprobs)
        options = add_structure(options, request, stops, allows_space=False)

        def read() -> IncrementalText:
            return IncrementalText(model.tokenizer, stops=stops)

        places = self.places(model)
        shown = [] if places is None else _prepare_shown(request, places, images, model)
        held = held_images(shown)
        ids = np.array(self._encode(request, shown, model), dtype=np.int64)
        name = SOURCE_IDS if model.reads_source else PROMPT_IDS
        may_end_early = bool(stops) and rows_of(options) == 1
        return ContinuationPlan(
            ChatResponse,
            request,
            model,
            (0,),
            (model.generate_call({name: ids, **held}, options, read if may_end_early else None),),
            read,
            with_logprobs=request.logprobs is not None,
            with_structure=request.structure is not None,
        )

    def size(self, request: ChatRequest) -> int | None:
        """Characters, and what the template does for a message of no length and for none.

        None with images.
        """
        if request.images:
            return None
        lengths = (len(message.content) + _MESSAGE_SIZE for message in request.messages)
        return _TEMPLATE_SIZE + sum(lengths)

    def _encode(
        self, request: ChatRequest, images: Sequence[PreparedImage], model: LoadedModel
    ) -> Sequence[int]:
        """The conversation's ids, with as many of them for each image as the model reads.

        The template writes special tokens out, so none are added; where conversations hold images,
        a template may leave the beginning-of-text token out, which is then added, as by the
        processors of `transformers`.
        """
        section, places = self.section_of(model), self.places(model)
        template = _compile_template(section.template, tuple(section.special_tokens.items()))
        messages = [message.model_dump() for message in request.messages]
        if places is not None:
            messages = [{**each, "content": places.parts(each["content"])} for each in messages]
        text = template.render(messages, model.longest_text)
        if places is None:
            ids = model.encode(text, _FIELD, special=False)
            model.check_has_no_image(ids, _FIELD)
        else:
            _check_places(text, places, request)
            begin = section.special_tokens.get("bos_token")
            is_complete = begin is not None and text.startswith(begin)
            ids = places.encode(
                text,
                _FIELD,
                model,
                layouts=[image.layout for image in images],
                is_complete=is_complete,
            )
        if not ids:
            raise InvalidRequest(f"{_FIELD} are empty in the model's chat template", field=_FIELD)
        longest, limit = min(model.prompt_bounds())
        if len(ids) > longest:
            raise TooLong(f"{_FIELD} have {len(ids)} tokens, {limit}: shorten them", field=_FIELD)
        return ids


def _prepare_shown(
    request: ChatRequest, places: ImagePlaces, images: Sequence[ImageInput], model: LoadedModel
) -> list[PreparedImage]:
    """The images of a conversation."""
    text = "".join(message.content for message in request.messages)
    read = prepare_images(images, model)
    return PromptPixels.of(places, "", [text], read).of_prompt(0, model.task_limits, _FIELD)


def _check_places(text: str, places: ImagePlaces, request: ChatRequest) -> None:
    """Raises InvalidRequest where the template wrote other places than the messages have."""
    count = len(request.images or ())
    if places.count(text) != count:
        raise InvalidRequest(
            f"the model's chat template writes {places.count(text)} of {count} images: it takes "
            "them in other messages",
            field=_FIELD,
        )


@lru_cache(_COMPILED)
def _compile_template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))


TASK = Chat()
