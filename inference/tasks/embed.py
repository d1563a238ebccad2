"""`embed`: texts or images as vectors of one space, from any parts that return EMBEDDING."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError
from inference.tasks.embedding.embedding_calls import EmbeddingCalls, EmbeddingPlace, scale_to_unit
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.embedding_cache import Embedded
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    map_valid,
)
from inference.tasks.shared.needs import IMAGE_EMBEDDING, TEXT_EMBEDDING
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from triptych.messages import Usage
from triptych.tasks import embed as declared
from triptych.tasks.embed import Embedding, EmbedRequest, EmbedResponse

Read = Callable[[Sequence[Outcome]], Embedded]
"""One item's embedding, out of the outcomes of the plan's calls."""


class EmbedSection(TaskConfig):
    """Length and prompts; all fields have defaults, because the task is implied."""

    is_normalized: bool = True
    """Whether the graph's vectors have unit length."""
    prompts: Mapping[str, str] = Field(default_factory=dict)
    """Name → text that is put before a text to embed, e.g. `query`."""
    default_prompt: str | None = None
    """Name of the prompt of requests that name none."""
    pooling: str | None = None
    """Informative: how hidden states become a vector."""

    @model_validator(mode="after")
    def _has_default_prompt(self) -> Self:
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ValueError(f"default_prompt {self.default_prompt!r} is not in prompts")
        return self


@dataclass(frozen=True)
class EmbedPlan(Plan):
    """Calls that embed the images, or the texts that are not cached."""

    model: LoadedModel
    scales: bool
    """Whether vectors are to be scaled to unit length."""
    items: tuple[Read | ServingError, ...]
    calls: tuple[InferCall, ...]

    def finish(self, outcomes: Sequence[Outcome]) -> EmbedResponse:
        """The embeddings; those of new texts enter the cache."""
        tokens = 0

        def embed(index: int, item: Read) -> Embedding:
            nonlocal tokens
            entry = item(outcomes)
            tokens += entry.tokens
            vector = scale_to_unit(entry.vector) if self.scales else entry.vector
            cut = entry.cut_characters or None
            return Embedding.model_construct(
                index=index, embedding=vector.astype("<f8"), truncated_characters=cut
            )

        data = answer_each(self.items, embed, Embedding)
        return EmbedResponse(model=self.model.name, data=data, usage=Usage(prompt_tokens=tokens))


class Embed(ServedTask[EmbedRequest, EmbedSection]):
    """Embeddings; implied by the roles of a bundle's graphs, so its section is optional."""

    declaration = declared.TASK
    section = EmbedSection
    is_implied = True
    needs = (TEXT_EMBEDDING | IMAGE_EMBEDDING,)
    has_vectors = True

    def prepare(
        self, request: EmbedRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> EmbedPlan:
        section = self.section_of(model)
        if section.is_normalized and not request.normalize:
            raise InvalidRequest(
                f"{model.name} returns embeddings of unit length only: leave normalize out",
                field="normalize",
            )
        calls = EmbeddingCalls(model, cut_end=request.cut_end)
        if request.texts is None:
            items = map_valid(calls.add_images(images, request.frame_counts), _image_reader)
        else:
            prompt = _prompt(request, section, model)
            items = _text_readers(request.texts, prompt, calls)
        scales = request.normalize and not section.is_normalized
        return EmbedPlan(model, scales, items, tuple(calls.calls))

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        roles = (Role.PIXELS, Role.TOKENS)
        return part_canaries(model, *((role, Role.EMBEDDING) for role in roles))

    def accepts(self, request: EmbedRequest, model: LoadedModel) -> bool:
        return ("images" if request.texts is None else "texts") in self.inputs(model)

    def inputs(self, model: LoadedModel) -> Sequence[str]:
        needs = {"texts": TEXT_EMBEDDING, "images": IMAGE_EMBEDDING}
        return [field for field, need in needs.items() if model.meets(need)]

    def refusal(self, request: EmbedRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        field = "images" if request.texts is None else "texts"
        names = ", ".join(model.name for model in models)
        return InvalidRequest(f"{names} cannot embed {field}", field=field)

    def details(self, model: LoadedModel) -> Mapping[str, list[str]]:
        return {"prompts": list(self.section_of(model).prompts)}

    def size(self, request: EmbedRequest) -> int | None:
        """Characters of the texts with the prompt; None for images, which are decoded."""
        if request.texts is None:
            return None
        return sum(map(len, request.texts)) + len(request.prompt or "") * len(request.texts)


def _image_reader(place: EmbeddingPlace) -> Read:
    return lambda outcomes: Embedded(place.read(outcomes, Role.EMBEDDING), tokens=0)


def _prompt(request: EmbedRequest, section: EmbedSection, model: LoadedModel) -> str:
    """What is put before each text.

    Raises:
        InvalidRequest: the model has no prompt of that name.
    """
    if request.prompt is not None:
        return request.prompt
    name = request.prompt_name or section.default_prompt
    if name is None:
        return ""
    if name not in section.prompts:
        known = ", ".join(section.prompts) or "none"
        raise InvalidRequest(
            f"{model.name} has no prompt of that name; it has: {known}", field="prompt_name"
        )
    return section.prompts[name]


def _text_readers(
    texts: Sequence[str], prompt: str, calls: EmbeddingCalls
) -> tuple[Read | ServingError, ...]:
    """One reader per text; equal texts share a row.

    Raises:
        InvalidRequest: too many texts.
        ServingError: no text is valid; the first one's error.
    """
    calls.model.task_limits.check_batch(len(texts), "texts")

    def add(index: int, text: str) -> str:
        return calls.add_text(text, f"texts.{index}", prompt=prompt)

    valid = attempt_each(texts, add)
    rows = calls.batch_texts()

    def reader(text: str) -> Read:
        return lambda outcomes: rows.find_embedding(text, outcomes)

    return map_valid(valid, reader)


TASK = Embed()
