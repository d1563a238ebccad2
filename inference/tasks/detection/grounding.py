"""`detect` by a detector that reads an image with the text of all labels (Grounding DINO).

The text is "a cat. a remote control.": each region has a score for every token of it. Boxes, scores
and labels are those of `GroundingDinoProcessor.post_process_grounded_object_detection`.

Image and text read each other from the first layer on, so nothing of either is kept. Each image is
a call of its own at its own size: padding would change its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError, UnsupportedImage
from inference.processing.prepared_image import PreparedImage
from inference.tasks.detection.regions import DetectSection, SizedRow, best_first, box, sigmoid
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from inference.tasks.shared.model_calls import (
    Array,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    unwrap,
)
from inference.tasks.shared.needs import SPANS, part
from inference.tasks.shared.rows import image_rows
from inference.tasks.shared.served_task import Plan
from triptych.messages import Usage
from triptych.task import IMAGES
from triptych.tasks.detect import DEFAULT_TEXT_THRESHOLD, Detection, DetectRequest, DetectResponse

LABELS = "labels"
READS_LABELS = part(takes=Role.PIXELS, returns=Role.TOKEN_LOGITS) & SPANS
_FOUND = (Role.BOXES, Role.TOKEN_LOGITS)
_END = "."


@dataclass(frozen=True)
class GroundedPlan(Plan):
    """One call for each readable image."""

    model: LoadedModel
    token_ids: tuple[int, ...]
    images: tuple[SizedRow | ServingError, ...]
    calls: tuple[InferCall, ...]
    threshold: float
    text_threshold: float
    top_k: int | None = None

    def finish(self, outcomes: Sequence[Outcome]) -> DetectResponse:
        def detect(index: int, known: SizedRow) -> Detection:
            boxes, logits = (known.row.read(outcomes, role) for role in _FOUND)
            scores, corners = sigmoid(logits), known.corners(boxes, is_padded=False)
            best = scores.max(axis=1)
            found = [
                box(
                    self._label(scores[region] >= self.text_threshold),
                    float(best[region]),
                    corners[region],
                )
                for region in best_first(best, self.threshold, self.top_k)
            ]
            return Detection(index=index, boxes=found, width=known.width, height=known.height)

        data = answer_each(self.images, detect, Detection)
        return DetectResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=len(self.token_ids))
        )

    def _label(self, is_part: npt.NDArray[np.bool_]) -> str:
        """The tokens that a region is, as text.

        Args:
            is_part: (T,); the first token, and the last one that the model could read, never are.
        """
        stop = (self.model.manifest.limits.max_input_tokens or len(is_part) + 1) - 1
        ids = [self.token_ids[place] for place in np.flatnonzero(is_part) if 0 < place < stop]
        return self.model.spans.render(ids, skip_special_tokens=False)


def plan_grounded(
    request: DetectRequest, images: Sequence[ImageInput], model: LoadedModel, section: DetectSection
) -> GroundedPlan:
    """One call for each readable image: images differ in size.

    Raises:
        InvalidRequest: too many images, an empty label, or one with a full stop.
        TooLong: the labels together are more than the model takes.
        ServingError: no image can be read; the first one's error.
    """
    ids = model.encode_text(join_labels(request.labels or ()), LABELS, what=" (as one text)").ids
    prepared = prepare_images(images, model)
    detector = model.part(takes=Role.PIXELS, returns=Role.TOKEN_LOGITS)
    boxes = detector.graph.output(Role.BOXES)
    assert boxes is not None
    calls: list[InferCall] = []

    def check(index: int, image: PreparedImage | ServingError) -> PreparedImage:
        known = unwrap(image)
        height, width = known.layout.size
        if count_places(height, width, section.strides) < int(boxes.shape[1]):
            sides = f"{known.size[0]}x{known.size[1]}"
            raise UnsupportedImage(
                f"{sides} has too extreme an aspect ratio for this model: crop it",
                field=f"{IMAGES}.{index}",
            )
        return known

    sized = attempt_each(prepared, check)
    texts: dict[Role, Array] = {
        Role.TOKENS: np.array(ids, np.int64),
        Role.LENGTHS: np.array(len(ids), np.int32),
    }
    rows = image_rows(sized, detector, _FOUND, calls, texts, most=1)

    def place(index: int, image: PreparedImage | ServingError) -> SizedRow:
        return SizedRow(unwrap(rows[index]), *unwrap(image).size)

    return GroundedPlan(
        model,
        tuple(ids),
        attempt_each(sized, place),
        tuple(calls),
        DEFAULT_TEXT_THRESHOLD if request.threshold is None else request.threshold,
        DEFAULT_TEXT_THRESHOLD if request.text_threshold is None else request.text_threshold,
        request.top_k,
    )


def join_labels(labels: Sequence[str]) -> str:
    """The text of labels, as `GroundingDinoProcessor` makes it.

    Raises:
        InvalidRequest: a label is empty, or has a full stop, which would end it.
    """
    for index, label in enumerate(labels):
        check_is_not_blank(label, f"labels.{index}")
        if _END in label:
            raise InvalidRequest(
                f"labels.{index} has a full stop, which ends a label of this model: leave it out",
                field=f"labels.{index}",
            )
    return ". ".join(label.strip().lower() for label in labels) + _END


def count_places(height: int, width: int, strides: Sequence[tuple[int, int]]) -> int:
    """Places of all grids of an image."""
    return sum(-(-height // rows) * -(-width // columns) for rows, columns in strides)
