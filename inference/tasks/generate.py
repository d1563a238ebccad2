"""`generate`: one call for each prompt, laid out with its examples, until its end or a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from inference.engine.codec import PROMPT_IDS, SOURCE_IDS
from inference.errors import InvalidRequest, TooLong
from inference.processing.detokenizer import LeadingSpace
from inference.processing.prepared_image import ImageLayout
from inference.tasks.generation import prompt_task
from inference.tasks.generation.continuation import ContinuationPlan, Echo, given_tokens, rows_of
from inference.tasks.generation.image_places import ImagePlaces, WithImages, with_instruction
from inference.tasks.generation.overrides import add_structure, sampling_overrides
from inference.tasks.generation.prompt_task import (
    IMAGE_PROMPTS,
    PromptPixels,
    PromptTask,
    image_inputs,
)
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from inference.tasks.shared.model_calls import Array, GenerateCall, attempt_each
from inference.tasks.shared.needs import GENERATOR, TOKENIZER
from triptych.tasks import generate as declared
from triptych.tasks.generate import GenerateRequest, GenerateResponse


class Generate(PromptTask[GenerateRequest, WithImages]):
    """Text generation."""

    declaration = declared.TASK
    section = WithImages
    needs = (GENERATOR, TOKENIZER, IMAGE_PROMPTS)

    def prepare(
        self, request: GenerateRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> ContinuationPlan:
        model.task_limits.check_batch(len(request.prompts), "prompts")
        # An encoder reads its task in front of the text ("summarize: …"), not in a layout.
        is_plain = model.reads_source and not request.examples
        before = prompt_task.before(request.instruction) if is_plain else ""
        header = "" if is_plain else prompt_task.header(request.instruction, request.examples or ())
        stops = _stops(request, has_header=bool(header))
        options = sampling_overrides(request, model, stops=stops, logprobs=request.logprobs)
        options = add_structure(options, request, request.stop, allows_space=bool(header))
        _check_echo(request, model)
        places = self.section_of(model).images
        pixels = _pixels(places, header or before, request, images, model)

        def read() -> IncrementalText:
            trim = LeadingSpace() if header else None
            return IncrementalText(model.tokenizer, stops=stops, trim=trim)

        calls: list[GenerateCall] = []
        echoes: dict[int, Echo] = {}
        may_end_early = bool(stops) and rows_of(options) == 1

        def add_call(index: int, prompt: str) -> int:
            field = f"prompts.{index}"
            if model.reads_source:
                check_is_not_blank(prompt, field)
            model.check_characters(len(header or before) + len(prompt), field)
            text = prompt_task.laid_out(header, prompt, field) if header else before + prompt
            shown = [] if pixels is None else pixels.of_prompt(index, model.task_limits, field)
            held = image_inputs(shown, field, model)
            read_for = {} if places is None else places.instruction(text, field, model)
            layouts = [image.layout for image in shown]
            ids = np.array(_encode(text, field, model, places, layouts), dtype=np.int64)
            name = SOURCE_IDS if model.reads_source else PROMPT_IDS
            reader = read if may_end_early else None
            inputs = with_instruction({name: ids, **held}, read_for)
            calls.append(model.generate_call(inputs, options, reader))
            number = len(calls) - 1
            if request.echo:
                scoring = _scoring_call(ids, {**held, **read_for}, request.logprobs, model)
                calls.extend(filter(None, [scoring]))
                scored = tuple(ids.tolist()) if request.logprobs is not None else ()
                echoes[index] = Echo(text, scored, number + 1 if scoring else None)
            return number

        numbers = attempt_each(request.prompts, add_call, calls)
        return ContinuationPlan(
            GenerateResponse,
            request,
            model,
            numbers,
            tuple(calls),
            read,
            with_logprobs=request.logprobs is not None,
            with_structure=request.structure is not None,
            echoes=echoes,
        )

    def size(self, request: GenerateRequest) -> int | None:
        """Characters; instruction and examples are read again for each prompt. None with images."""
        if request.images:
            return None
        examples = (text for one in request.examples or () for text in (one.input, one.output))
        header = sum(map(len, (*examples, request.instruction or "")))
        return sum(map(len, request.prompts)) + header * len(request.prompts)


def _stops(request: GenerateRequest, *, has_header: bool) -> tuple[str, ...]:
    """Stop strings; a line break where the few-shot layout and nothing else ends an output."""
    if has_header and not request.stop and request.structure is None:
        return (prompt_task.STOP,)
    return tuple(request.stop or ())


def _pixels(
    places: ImagePlaces | None,
    header: str,
    request: GenerateRequest,
    images: Sequence[ImageInput],
    model: LoadedModel,
) -> PromptPixels | None:
    """The images of each prompt; None where prompts hold none."""
    if places is None:
        return None
    return PromptPixels.of(places, header, request.prompts, prepare_images(images, model))


def _check_echo(request: GenerateRequest, model: LoadedModel) -> None:
    """Raises InvalidRequest where a prompt cannot be returned."""
    if request.echo and request.stream:
        raise InvalidRequest("a stream does not carry the prompt: leave echo out", field="echo")
    if request.echo and model.reads_source:
        raise InvalidRequest(
            f"{model.name} reads prompts with its encoder and does not score them: leave echo out",
            field="echo",
        )
    is_scored, step = request.echo and request.logprobs is not None, model.manifest.graphs["step"]
    images = model.manifest.images
    why = None
    if step.whole_prompts or (step.whole_images and request.images):
        read, scored = ("prompts", "them") if step.whole_prompts else ("images", "their prompts")
        why = f"reads {read} in both directions and does not score {scored}"
    elif images is not None and not images.is_scored and request.images:
        why = "has no score of an image's token"
    if is_scored and why:
        raise InvalidRequest(f"{model.name} {why}: leave echo or logprobs out", field="echo")


def _scoring_call(
    ids: Array, held: Mapping[str, Array], logprobs: int | None, model: LoadedModel
) -> GenerateCall | None:
    """The call that takes a prompt's tokens one by one, after the first; None without scores.

    Args:
        held: The prompt's images, if it has some.
    """
    given = tuple(ids[1:].tolist())
    if logprobs is None or not given:
        return None
    return model.generate_call({PROMPT_IDS: ids[:1], **held}, given_tokens(given, logprobs))


def _encode(
    text: str,
    field: str,
    model: LoadedModel,
    places: ImagePlaces | None,
    layouts: Sequence[ImageLayout],
) -> list[int]:
    """Ids of a text; of an empty one the beginning-of-text token, where the model has one.

    Args:
        places: How the model reads images in a text, special tokens included.
        layouts: Of the images of all places.

    Raises:
        InvalidRequest: nothing to begin with.
        TooLong: more than the gateway or the model takes, or no room left for an output.
    """
    if places is None:
        ids = model.encode(text, field) or model.beginning
    else:
        ids = places.encode(text, field, model, layouts=layouts)
    if not ids and (model.reads_source or not model.generation.decoder_start_ids):
        raise InvalidRequest(f"{field} is empty: there is nothing to continue", field=field)
    longest, limit = min(model.prompt_bounds())
    if len(ids) > longest:
        raise TooLong(f"{field} has {len(ids)} tokens, {limit}: shorten it", field=field)
    return ids


TASK = Generate()
