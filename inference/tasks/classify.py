"""`classify`: scores of a model's own labels, for texts, pairs of texts, images or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.labels import Activation, Scores, activate, best_first, windows
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    map_valid,
    unwrap,
)
from inference.tasks.shared.needs import IMAGE_RECIPE, SPANS, labelled, scores
from inference.tasks.shared.rows import Row, image_rows
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from inference.tasks.shared.text_rows import TextRows
from triptych.messages import Usage
from triptych.task import IMAGES
from triptych.tasks import classify as declared
from triptych.tasks.classify import (
    MAX_TOP_K,
    Classes,
    ClassifyRequest,
    ClassifyResponse,
    ClassScore,
)

_TEXT_SCORES = scores(takes=Role.TOKENS, shape="(B, C)") & SPANS
_IMAGE_SCORES = scores(takes=Role.PIXELS, shape="(B, C)") & IMAGE_RECIPE


class ClassifySection(TaskConfig):
    """The labels, and how logits become their scores."""

    labels: tuple[str, ...] = Field(min_length=1)
    """In the order of the logits."""
    activation: Activation
    """As the classification pipelines of `transformers` choose by `problem_type`."""
    pairs: Literal["none", "optional", "required"] = "none"
    """Whether the model reads pairs of texts."""


@dataclass(frozen=True)
class _Item:
    """One text, pair or image, or an image with a text."""

    rows: tuple[Row, ...]
    """Several for the windows of a text."""
    attention: Row | None = None
    cut_characters: int = 0


@dataclass(frozen=True)
class ClassifyPlan(Plan):
    """Calls that score the items."""

    model: LoadedModel
    labels: Sequence[str]
    activation: Activation
    top_k: int
    items: tuple[_Item | ServingError, ...]
    calls: tuple[InferCall, ...]
    prompt_tokens: int = 0

    def finish(self, outcomes: Sequence[Outcome]) -> ClassifyResponse:
        def classify(index: int, found: _Item) -> Classes:
            row, scores = found.attention, self._scores(found, outcomes)
            best = best_first(scores, self.top_k)
            return Classes(
                index=index,
                labels=[ClassScore(label=self.labels[i], score=float(scores[i])) for i in best],
                truncated_characters=found.cut_characters or None,
                attention=row.read(outcomes, Role.ATTENTION).tolist() if row else None,
            )

        data = answer_each(self.items, classify, Classes)
        return ClassifyResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.prompt_tokens)
        )

    def _scores(self, item: _Item, outcomes: Sequence[Outcome]) -> Scores:
        """(labels,): the mean over an item's windows."""
        logits = np.stack([row.read(outcomes, Role.LOGITS) for row in item.rows])
        return np.asarray(activate(logits, self.activation).mean(axis=0))


class Classify(ServedTask[ClassifyRequest, ClassifySection]):
    """Sequence and image classifiers."""

    declaration = declared.TASK
    section = ClassifySection
    needs = (_TEXT_SCORES | _IMAGE_SCORES, labelled(declared.TASK.name))

    def prepare(
        self, request: ClassifyRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> ClassifyPlan:
        _check(request, model)
        calls: list[InferCall] = []
        rows = TextRows(model)
        if request.images is not None and request.texts is not None:
            items = _joint_items(images, request, model, rows, calls)
        elif request.images is not None:
            items = _image_items(images, request, model, calls)
        else:
            items = _text_items(request, model, rows, calls)
        section = self.section_of(model)
        return ClassifyPlan(
            model,
            section.labels,
            request.function_to_apply or section.activation,
            request.top_k,
            items,
            tuple(calls),
            prompt_tokens=sum(map(len, rows.texts)),
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        outputs = (Role.PIXELS, Role.LOGITS), (Role.TOKENS, Role.LOGITS), (Role.PIXELS, _ATTENTION)
        return part_canaries(model, *outputs)

    def accepts(self, request: ClassifyRequest, model: LoadedModel) -> bool:
        return _find_given(request) in self._list_inputs(model)

    def inputs(self, model: LoadedModel) -> Sequence[str]:
        """Its items have one of them, or all where these are texts and images."""
        return [field for fields in self._list_inputs(model) for field in fields]

    def _list_inputs(self, model: LoadedModel) -> Sequence[tuple[str, ...]]:
        """Fields that an item has."""
        pairs = self.section_of(model).pairs
        reads_text = _TEXT_SCORES.is_met(model.manifest)
        reads_images = _IMAGE_SCORES.is_met(model.manifest)
        if reads_images and model.part(takes=Role.PIXELS, returns=Role.LOGITS).graph.input(
            Role.TOKENS
        ):
            return [declared.TASK.together]
        taken = {
            "texts": reads_text and pairs != "required",
            "pairs": reads_text and pairs != "none",
            "images": reads_images,
        }
        return [(field,) for field, is_taken in taken.items() if is_taken]

    def refusal(self, request: ClassifyRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        given = _find_given(request)
        names = ", ".join(model.name for model in models)
        taken = dict.fromkeys(
            _join_names(each) for model in models for each in self._list_inputs(model)
        )
        return InvalidRequest(
            f"{names} cannot classify {_join_names(given)}, only {', '.join(taken)}",
            field=given[-1],
        )

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_top_k": min(MAX_TOP_K, len(self.section_of(model).labels))}

    def size(self, request: ClassifyRequest) -> int | None:
        """Characters of the texts; None for images, which are decoded."""
        if request.images is not None:
            return None
        pairs = sum(len(pair.first) + len(pair.second) for pair in request.pairs or ())
        return sum(map(len, request.texts or ())) + pairs


_ATTENTION = Role.ATTENTION


def _find_given(request: ClassifyRequest) -> tuple[str, ...]:
    """The fields that are given: one, or texts and images."""
    fields = declared.TASK.item_fields
    return tuple(field for field in fields if getattr(request, field) is not None)


def _join_names(fields: Sequence[str]) -> str:
    return " with ".join(reversed(fields))


def _check(request: ClassifyRequest, model: LoadedModel) -> None:
    if request.stride is not None and _find_given(request) != ("texts",):
        raise InvalidRequest("stride is for texts alone: leave it out", field="stride")
    if request.truncate and _find_given(request) == ("images",):
        raise InvalidRequest("truncate is for texts and pairs: leave it out", field="truncate")
    if request.return_attention and request.images is None:
        raise InvalidRequest(
            "return_attention is for images: leave it out", field="return_attention"
        )
    attention = model.manifest.part(takes=Role.PIXELS, returns=Role.ATTENTION)
    if request.return_attention and attention is None:
        raise InvalidRequest(
            f"{model.name} returns no attention: leave return_attention out, or export the model "
            "with --attention",
            field="return_attention",
        )


def _joint_items(
    images: Sequence[ImageInput],
    request: ClassifyRequest,
    model: LoadedModel,
    rows: TextRows,
    calls: list[InferCall],
) -> tuple[_Item | ServingError, ...]:
    """Each image with its text, a call of its own, or its error; adds to `rows` and `calls`.

    Images may differ in size, and padding would change their scores.
    """
    texts = request.texts or ()
    most = max(len(texts), len(images))
    for name, given in (("texts", len(texts)), (IMAGES, len(images))):
        model.task_limits.check_batch(given, name)
        if given not in (1, most):
            raise InvalidRequest(
                f"{name} holds {given} for {most} items: give one for all of them, or one for each",
                field=name,
            )

    def encode(index: int, text: str) -> EncodedText:
        return model.encode_text(text, f"texts.{index}", cut_end=request.cut_end)

    read, prepared = attempt_each(texts, encode), prepare_images(images, model)
    part = model.part(takes=Role.PIXELS, returns=Role.LOGITS)

    def add_item(index: int, _: object) -> _Item:
        text = unwrap(read[index % len(read)])
        image = unwrap(prepared[index % len(prepared)])
        rows.add(text)
        inputs = {
            Role.PIXELS: image.pixels[None],
            Role.TOKENS: np.array([text.ids], np.int64),
            Role.LENGTHS: np.array([len(text)], np.int32),
        }
        calls.append(InferCall.of(part, inputs, (Role.LOGITS,)))
        return _Item((Row(len(calls) - 1, 0),), cut_characters=text.cut_characters)

    return attempt_each(range(most), add_item)


def _image_items(
    images: Sequence[ImageInput],
    request: ClassifyRequest,
    model: LoadedModel,
    calls: list[InferCall],
) -> tuple[_Item | ServingError, ...]:
    """Each image's rows, or its error; adds to `calls`."""
    prepared = prepare_images(images, model)
    attention = model.manifest.part(takes=Role.PIXELS, returns=Role.ATTENTION)
    part = model.part(takes=Role.PIXELS, returns=Role.LOGITS)
    rows = image_rows(prepared, part, (Role.LOGITS,), calls)
    weights: Sequence[Row | ServingError | None] = [None] * len(rows)
    if request.return_attention and attention is not None:
        weights = image_rows(prepared, attention, (Role.ATTENTION,), calls)
    return tuple(
        row
        if isinstance(row, ServingError)
        else _Item((row,), weight if isinstance(weight, Row) else None)
        for row, weight in zip(rows, weights, strict=True)
    )


def _text_items(
    request: ClassifyRequest, model: LoadedModel, rows: TextRows, calls: list[InferCall]
) -> tuple[_Item | ServingError, ...]:
    """Each text's or pair's rows, or its error; adds to `rows` and `calls`."""
    is_pairs = request.texts is None
    field = "pairs" if is_pairs else "texts"
    inputs: list[tuple[str, str | None]] = [(text, None) for text in request.texts or ()]
    inputs += [(pair.first, pair.second) for pair in request.pairs or ()]
    model.task_limits.check_batch(len(inputs), field)

    def add(index: int, texts: tuple[str, str | None]) -> tuple[list[int], int]:
        first, second = texts
        text = model.encode_text(
            first,
            f"{field}.{index}",
            second=second,
            is_whole=request.stride is None,
            cut_end=request.cut_end,
        )
        if request.stride is None:
            return [rows.add(text)], text.cut_characters
        divided = windows(text, model.text_limit, request.stride, "stride")
        return [rows.add(text.at(positions)) for positions in divided], 0

    numbers = attempt_each(inputs, add)
    part = model.part(takes=Role.TOKENS, returns=Role.LOGITS)
    found = rows.batch(part, (Role.LOGITS,), calls)

    def place(item: tuple[list[int], int]) -> _Item:
        own, cut = item
        return _Item(tuple(found[number] for number in own), cut_characters=cut)

    return map_valid(numbers, place)


TASK = Classify()
