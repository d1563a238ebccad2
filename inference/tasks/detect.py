"""`detect`: regions of images against label texts (OWL-ViT, arXiv 2205.06230, section 3).

What a generator writes is read in `detection/generated_boxes.py`; `detection/grounding.py` is for a
detector that reads the text of all labels with the image.

Images and labels are two graphs, and the gateway multiplies their vectors: labels are embedded
once, and images of requests with other labels share a call. Overlapping boxes are not suppressed,
as in `transformers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inference.bundle.manifest import Manifest, Role
from inference.errors import InvalidRequest, ServingError
from inference.processing.prepared_image import PreparedImage
from inference.tasks.detection.generated_boxes import LABELS, WRITES_BOXES, plan_written
from inference.tasks.detection.grounding import READS_LABELS, plan_grounded
from inference.tasks.detection.regions import (
    DetectSection,
    Floats,
    SizedRow,
    best_first,
    box,
    sigmoid,
)
from inference.tasks.embedding.embedding_calls import EmbeddedTexts, EmbeddingCalls
from inference.tasks.shared.canaries import generator_canary, part_canaries
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    unwrap,
)
from inference.tasks.shared.needs import TEXT_EMBEDDING, WHOLE_IMAGE, part
from inference.tasks.shared.rows import image_rows
from inference.tasks.shared.served_task import Plan, ServedTask
from triptych.messages import Usage
from triptych.tasks import detect as declared
from triptych.tasks.detect import (
    DEFAULT_THRESHOLD,
    MAX_LABELS,
    Box,
    Detection,
    DetectRequest,
    DetectResponse,
)

_FOUND = (Role.BOXES, Role.REGIONS, Role.REGION_BIASES)
_TOWERS = ((Role.PIXELS, Role.BOXES), (Role.TOKENS, Role.EMBEDDING))


@dataclass(frozen=True)
class DetectPlan(Plan):
    """Calls that embed the labels that are not cached, and the images."""

    model: LoadedModel
    labels: tuple[str, ...]
    texts: EmbeddedTexts
    images: tuple[SizedRow | ServingError, ...]
    calls: tuple[InferCall, ...]
    threshold: float
    top_k: int | None = None

    def finish(self, outcomes: Sequence[Outcome]) -> DetectResponse:
        """The boxes of each image; new text embeddings enter the cache."""
        texts = {text: self.texts.find_embedding(text, outcomes) for text in self.labels}
        labels = np.stack([texts[label].vector for label in self.labels])

        def detect(index: int, known: SizedRow) -> Detection:
            boxes, regions, biases, *objects = (
                known.row.read(outcomes, role) for role in _outputs(self.model.manifest)
            )
            corners = known.corners(boxes, self.model.image.resize == "padded")
            objectness = sigmoid(objects[0]) if objects else None
            found = self._best(regions @ labels.T + biases[:, None], corners, objectness)
            return Detection(index=index, boxes=found, width=known.width, height=known.height)

        data = answer_each(self.images, detect, Detection)
        return DetectResponse(
            model=self.model.name,
            data=data,
            usage=Usage(prompt_tokens=sum(text.tokens for text in texts.values())),
        )

    def _best(self, logits: Array, corners: Floats, objectness: Floats | None) -> list[Box]:
        """Of each region its best label, if it reaches the threshold; best regions first.

        Args:
            logits: (N, labels).
            corners: (N, 4), in pixels.
            objectness: (N,); None of models without.
        """
        scores = sigmoid(logits.max(axis=1))
        labels = logits.argmax(axis=1)
        return [
            box(
                self.labels[labels[region]],
                float(scores[region]),
                corners[region],
                None if objectness is None else float(objectness[region]),
            )
            for region in best_first(scores, self.threshold, self.top_k)
        ]


def _outputs(manifest: Manifest) -> tuple[Role, ...]:
    """What is read of a model's regions."""
    part = manifest.part(takes=Role.PIXELS, returns=Role.OBJECTNESS)
    return _FOUND if part is None else (*_FOUND, Role.OBJECTNESS)


class Detect(ServedTask[DetectRequest, DetectSection]):
    """Detection of things in images by labels given as text."""

    declaration = declared.TASK
    section = DetectSection
    needs = (
        part(takes=Role.PIXELS, returns=Role.BOXES) & TEXT_EMBEDDING | READS_LABELS | WRITES_BOXES,
        WHOLE_IMAGE,
    )

    def prepare(
        self, request: DetectRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> Plan:
        section = self.section_of(model)
        if section.images is not None:
            return plan_written(request, images, model, section)
        if section.strides:
            return plan_grounded(request, images, model, section)
        labels = request.labels or []
        embedding = EmbeddingCalls(model)
        embedding.add_labels(labels)
        texts = embedding.batch_texts()
        sized = prepare_images(images, model)
        detector = model.part(takes=Role.PIXELS, returns=Role.BOXES)
        rows = image_rows(sized, detector, _outputs(model.manifest), embedding.calls)

        def place(index: int, image: PreparedImage | ServingError) -> SizedRow:
            return SizedRow(unwrap(rows[index]), *unwrap(image).size)

        return DetectPlan(
            model,
            tuple(labels),
            texts,
            attempt_each(sized, place),
            tuple(embedding.calls),
            DEFAULT_THRESHOLD if request.threshold is None else request.threshold,
            request.top_k,
        )

    def accepts(self, request: DetectRequest, model: LoadedModel) -> bool:
        """A generator finds what it can name; other models need labels."""
        return bool(request.labels) or self.section_of(model).images is not None

    def refusal(self, request: DetectRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        names = ", ".join(model.name for model in models)
        return InvalidRequest(f"{names} finds things by their labels: give some", field=LABELS)

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        if model.manifest.generator is not None:
            return [generator_canary(model)]
        return part_canaries(model, *_TOWERS)

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_labels": MAX_LABELS}


TASK = Detect()
