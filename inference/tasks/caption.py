"""`caption`: one generator call for each image, beginning with the prompt where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.errors import InternalError, InvalidRequest, ServingError, TooLong
from inference.generation import Finished, Hypothesis
from inference.processing.detokenizer import Stripping
from inference.processing.prepared_image import ImageLayout, PreparedImage
from inference.processing.sentences import is_blank
from inference.tasks.generation.image_places import ImagePlaces, WithImages, with_instruction
from inference.tasks.generation.overrides import check_stream, is_greedy_stream, sampling_overrides
from inference.tasks.generation.prompt_task import IMAGE_PROMPTS, held_images
from inference.tasks.shared.alignment import block_diagonal, weights_of
from inference.tasks.shared.canaries import generator_canary
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    GenerateCall,
    Outcome,
    answer_each,
    attempt_each,
    finished_of,
    unwrap,
    usage_of,
)
from inference.tasks.shared.needs import GENERATOR, IMAGE_RECIPE, TOKENIZER
from inference.tasks.shared.served_task import Plan, ServedTask
from inference.tasks.shared.streaming import Streaming, one_call_each
from triptych.messages import Alternative
from triptych.task import IMAGES
from triptych.tasks import caption as declared
from triptych.tasks.caption import INSTRUCTION, Attention, Caption, CaptionRequest, CaptionResponse


@dataclass(frozen=True)
class CaptionPlan(Plan):
    """One call for each readable image."""

    request: CaptionRequest
    model: LoadedModel
    prompt_ids: tuple[int, ...]
    """With which captions begin."""
    numbers: tuple[int | ServingError, ...]
    """For each image its call's number, or its error."""
    calls: tuple[GenerateCall, ...]
    grid: tuple[int, int] | None
    """Rows and columns of patches, where attention was requested."""

    def finish(self, outcomes: Sequence[Outcome]) -> CaptionResponse:
        def caption(index: int, number: int) -> Caption:
            return self._caption(index, finished_of(outcomes[number]))

        data = answer_each(self.numbers, caption, Caption)
        return CaptionResponse(model=self.model.name, data=data, usage=usage_of(outcomes))

    def streaming(self) -> Streaming:
        items = one_call_each(self.numbers, self._read)
        is_greedy = is_greedy_stream(self.request, self.calls, self.model)
        return Streaming(items, self.calls, is_greedy=is_greedy)

    def _read(self) -> IncrementalText:
        return IncrementalText(self.model.tokenizer, begins_with=self.prompt_ids, trim=Stripping())

    def _caption(self, index: int, finished: Finished) -> Caption:
        decode = self.model.tokenizer.decode
        finished = finished.by_score()
        hypotheses = [
            Alternative(
                text=decode([*self.prompt_ids, *one.token_ids]).strip(),
                score=one.score,
                finish_reason=one.finish_reason,
            )
            for one in finished.hypotheses
        ]
        return Caption(
            index=index,
            text=hypotheses[0].text,
            finish_reason=hypotheses[0].finish_reason,
            score=hypotheses[0].score,
            alternatives=hypotheses if self.request.n else None,
            attention=self._attention(finished.best) if self.grid else None,
        )

    def _attention(self, best: Hypothesis) -> Attention:
        assert self.grid is not None
        return Attention(
            tokens=self.model.tokenizer.pieces(best.token_ids),
            grid=list(self.grid),
            weights=block_diagonal(
                [weights_of(best.alignment, rows=len(best.token_ids), last=math.prod(self.grid))]
            ),
        )


class CaptionSection(WithImages):
    """How prompts hold the image."""

    layout: tuple[str, str] | None = None
    """Of a model that answers instructions, the text before and behind one, the image's place
    included; the answer is then the caption. None: the image, and the caption's first words."""
    is_complete: bool = False
    """Whether the layout has all special tokens."""
    prompt: str = ""
    """Where there is no layout: the prompt of a request without one."""

    @property
    def answers(self) -> bool:
        """Whether the prompt is a question, which the caption does not repeat."""
        return self.layout is not None or bool(self.images and self.images.end)

    def instruction(self, prompt: str | None, field: str, model: LoadedModel) -> dict[str, Array]:
        """What the image encoder reads of a prompt; see `ImagePlaces.instruction`."""
        if self.images is None:
            return {}
        return self.images.instruction(self.write_prompt(self.images, prompt)[0], field, model)

    def write_prompt(self, places: ImagePlaces, prompt: str | None) -> tuple[str, bool]:
        """The text that the model reads, and whether it has all special tokens."""
        if self.layout is None:
            return places.place + (prompt or self.prompt), False
        before, behind = self.layout
        return before + (prompt or INSTRUCTION) + behind, self.is_complete


class CaptionTask(ServedTask[CaptionRequest, CaptionSection]):
    """Image captioning."""

    declaration = declared.TASK
    section = CaptionSection
    needs = (GENERATOR, TOKENIZER, IMAGE_RECIPE, IMAGE_PROMPTS)

    def prepare(
        self, request: CaptionRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> CaptionPlan:
        check_stream(request.stream, return_attention=request.return_attention)
        options = sampling_overrides(request, model, widens_beam=True)
        if request.return_attention:
            options = options.model_copy(update={"return_alignment": True})
        grid = _grid(model) if request.return_attention else None
        section, header = self.section_of(model), self.header(request, model)
        smallest = ImageLayout.smallest(model.image)
        written = request.prompt if header is None else None
        begin = prompt_ids(written, "prompt", section, model, smallest)
        instruction = section.instruction(request.prompt, "prompt", model)
        calls: list[GenerateCall] = []

        def add_call(_: int, prepared: PreparedImage | ServingError) -> int:
            image = unwrap(prepared)
            ids = begin
            if image.layout != smallest:
                ids = prompt_ids(request.prompt, "prompt", section, model, image.layout)
            calls.append(model.generate_call(image_call(ids, image, instruction, model), options))
            return len(calls) - 1

        numbers = attempt_each(prepare_images(images, model, header), add_call, calls)
        is_shown = not (section.answers or model.reads_source)
        leading = _leading_ids(begin, section, model) if is_shown else ()
        return CaptionPlan(request, model, leading, numbers, tuple(calls), grid)

    def answers(self, model: LoadedModel) -> bool:
        """Whether a model answers the prompt, which is then a question."""
        patches = model.image.patches
        return self.section_of(model).answers or bool(patches and patches.has_header)

    def header(self, request: CaptionRequest, model: LoadedModel) -> str | None:
        return header_of(request.prompt, "prompt", model)

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return [generator_canary(model)]

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_best_of": model.task_limits.max_best_of}


def _grid(model: LoadedModel) -> tuple[int, int]:
    spec = model.alignment("patches", "return_attention")
    if spec.grid is None:
        raise InternalError(f"{model.name} has no grid of patches: export it again")
    return spec.grid


def _leading_ids(ids: list[int], section: CaptionSection, model: LoadedModel) -> tuple[int, ...]:
    """Ids with which the caption's text begins: of an image in tiles, those behind it."""
    images, places = model.manifest.images, section.images
    if images is None or places is None or places.tiles is None:
        return tuple(ids)
    return tuple(ids[len(ids) - ids[::-1].index(images.token_id) :])


def header_of(prompt: str | None, field: str, model: LoadedModel) -> str | None:
    """The prompt of a model that reads it in the image; None of others.

    Args:
        field: The request's field of the prompt.

    Raises:
        InvalidRequest: there is none.
    """
    patches = model.image.patches
    if patches is None or not patches.has_header:
        return None
    if not prompt or is_blank(prompt):
        raise InvalidRequest(
            f"{model.name} answers questions about images: write one in {field}", field=field
        )
    return prompt


def image_call(
    ids: Sequence[int], image: PreparedImage, instruction: Mapping[str, Array], model: LoadedModel
) -> dict[str, Array]:
    """Inputs of the call for an image and its prompt.

    Args:
        ids: Of `prompt_ids`.
        instruction: Of `CaptionSection.instruction`.
    """
    name = SOURCE_IDS if model.reads_source else PROMPT_IDS
    prompt = {name: np.array(ids, dtype=np.int64)} if ids else {}
    has_list = model.manifest.takes_image_lists
    held = held_images([image]) if has_list else {PIXELS: image.pixels}
    return with_instruction({**held, **prompt}, instruction)


def prompt_ids(
    prompt: str | None, field: str, section: CaptionSection, model: LoadedModel, layout: ImageLayout
) -> list[int]:
    """The prompt as the model reads it, with the image where the prompt holds it.

    Args:
        field: The request's field of the prompt.
        layout: Of the image.
    """
    places = section.images
    if places is not None:
        if places.count(prompt or ""):
            message = f"{field} has {places.place}: the image has its place, leave it out"
            raise InvalidRequest(message, field=field)
        text, is_complete = section.write_prompt(places, prompt)
        ids = places.encode(text, field, model, layouts=[layout], is_complete=is_complete)
    elif prompt:
        ids = model.encode(prompt, field, special=False)
    else:
        return []
    start = model.generation.decoder_start_ids
    if not model.reads_source and start and tuple(ids[: len(start)]) == start:
        ids = ids[len(start) :]  # the engine begins with it; Donut's prompts name their task so
    room = _room(model)
    if room is not None and len(ids) > room:
        field, change = (field, "shorten it") if prompt else (IMAGES, "send smaller ones")
        raise TooLong(
            f"{field} has {len(ids)} tokens, {model.name} takes at most {room}: {change}",
            field=field,
        )
    return ids


def _room(model: LoadedModel) -> int | None:
    """Tokens of the longest prompt."""
    limits = model.manifest.limits
    if model.reads_source:
        return limits.max_input_tokens
    positions = limits.max_total_tokens
    return None if positions is None else positions - len(model.generation.decoder_start_ids) - 1


TASK = CaptionTask()
