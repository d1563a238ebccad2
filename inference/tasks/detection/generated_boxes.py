"""`detect` by a generator that is asked in words and writes boxes into its answer (Florence-2).

The score of a box is the geometric mean of the probabilities of the four tokens that place it: how
sure the model is of the place, not of the label. It is not comparable with other detectors'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inference.bundle.manifest import Manifest
from inference.engine.codec import PIXELS, SOURCE_IDS
from inference.errors import ServingError
from inference.generation import Hypothesis, Overrides
from inference.processing.prepared_image import PreparedImage
from inference.processing.tokenizer import Tokenizer
from inference.tasks.detection.regions import (
    LOCATION,
    DetectSection,
    Phrase,
    Place,
    box,
    written_boxes,
)
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from inference.tasks.shared.model_calls import (
    Array,
    GenerateCall,
    Outcome,
    answer_each,
    attempt_each,
    finished_of,
    unwrap,
    usage_of,
)
from inference.tasks.shared.needs import GENERATOR, TOKENIZER, Need
from inference.tasks.shared.served_task import Plan
from triptych.tasks.detect import Detection, DetectRequest, DetectResponse

LABELS = "labels"


def _writes(manifest: Manifest) -> bool:
    is_asked = bool(manifest.tasks.get("detect", {}).get("images"))
    return is_asked and manifest.source_image is not None


WRITES_BOXES = GENERATOR & TOKENIZER & Need("an encoder that reads an image with a text", _writes)


@dataclass(frozen=True)
class SizedCall:
    """The number of an image's call, and its own size in pixels."""

    number: int
    size: tuple[int, int]
    """(width, height)"""


@dataclass(frozen=True)
class WrittenPlan(Plan):
    """One call for each readable image."""

    model: LoadedModel
    images: tuple[SizedCall | ServingError, ...]
    calls: tuple[GenerateCall, ...]
    ignored: tuple[str, ...]
    threshold: float
    top_k: int | None = None

    def finish(self, outcomes: Sequence[Outcome]) -> DetectResponse:
        def detect(index: int, known: SizedCall) -> Detection:
            best = finished_of(outcomes[known.number]).by_score().best
            found = written_boxes(phrases_of(best, self.model.tokenizer), known.size, self.ignored)
            boxes = [
                box(each.label, each.score, each.corners)
                for each in sorted(found, key=lambda one: one.score, reverse=True)
                if each.score >= self.threshold
            ]
            width, height = known.size
            return Detection(
                index=index,
                boxes=boxes[: self.top_k],
                width=width,
                height=height,
                finish_reason=best.finish_reason,
            )

        data = answer_each(self.images, detect, Detection)
        return DetectResponse(model=self.model.name, data=data, usage=usage_of(outcomes))


def plan_written(
    request: DetectRequest, images: Sequence[ImageInput], model: LoadedModel, section: DetectSection
) -> WrittenPlan:
    """One call for each readable image.

    Raises:
        InvalidRequest: too many images, or an empty label.
        TooLong: the labels are more than the model takes.
        ServingError: no image can be read; the first one's error.
    """
    for index, label in enumerate(request.labels or ()):
        check_is_not_blank(label, f"labels.{index}")
    assert section.images is not None
    text = section.prompt
    if request.labels:
        text = section.labelled + ". ".join(request.labels)
    ids = section.images.encode(section.images.place + text, LABELS, model)
    model.check_length(len(ids), LABELS)
    calls: list[GenerateCall] = []

    def add_call(_: int, prepared: PreparedImage | ServingError) -> SizedCall:
        image = unwrap(prepared)
        inputs: dict[str, Array] = {PIXELS: image.pixels, SOURCE_IDS: np.array(ids, np.int64)}
        options = Overrides(num_return_sequences=1, top_log_probs=0)
        calls.append(model.generate_call(inputs, options))
        return SizedCall(len(calls) - 1, image.size)

    items = attempt_each(prepare_images(images, model), add_call, calls)
    ignored = section.ignored if request.labels else ()
    threshold = request.threshold or 0.0
    return WrittenPlan(model, items, tuple(calls), ignored, threshold, request.top_k)


def phrases_of(answer: Hypothesis, tokenizer: Tokenizer) -> list[Phrase]:
    """An answer as texts, each with the places that follow it."""
    found: list[Phrase] = []
    words: list[int] = []
    places: list[Place] = []
    pieces = tokenizer.pieces(answer.token_ids)
    for token, piece, log_prob in zip(answer.token_ids, pieces, answer.log_probs, strict=True):
        place = LOCATION.fullmatch(piece)
        if place is not None:
            places.append(Place(int(place[1]), log_prob))
            continue
        if places:
            if not tokenizer.decode([token]):  # a control token, which is no part of the answer
                continue
            found.append(Phrase(tokenizer.decode(words), tuple(places)))
            words, places = [], []
        words.append(token)
    return [*found, Phrase(tokenizer.decode(words), tuple(places))]
