"""`segment`: masks of images for label texts (CLIPSeg, arXiv 2112.10003, section 3).

A mask is no product of an image and a label: the image graph takes the labels' vectors and runs its
tower once for all of them. Masks have the model's size, since a larger one says no more.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError
from inference.processing.image import grey_png
from inference.processing.prepared_image import PreparedImage
from inference.tasks.embedding.embedding_calls import EmbeddedTexts, EmbeddingCalls
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, Call, InferCall, Outcome, answer_each, unwrap
from inference.tasks.shared.needs import TEXT_EMBEDDING, WHOLE_IMAGE, part
from inference.tasks.shared.rows import Row, image_rows
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from triptych.messages import Usage
from triptych.tasks import segment as declared
from triptych.tasks.segment import (
    MAX_LABELS,
    MAX_MASKS,
    Mask,
    Segmentation,
    SegmentRequest,
    SegmentResponse,
)

_MASKS_PER_CALL = 64
"""At most, where there are several images: 32 MB of CLIPSeg's."""


class SegmentSection(TaskConfig):
    """The task needs no data of the model."""


@dataclass(frozen=True)
class SegmentPlan(Plan):
    """Calls that embed the labels that are not cached; then those that make their masks.

    Attributes:
        rows: Where the masks of each readable image are; None before the labels are embedded.
    """

    model: LoadedModel
    labels: tuple[str, ...]
    texts: EmbeddedTexts
    images: tuple[PreparedImage | ServingError, ...]
    calls: tuple[InferCall, ...]
    rows: tuple[Row | ServingError, ...] | None = None
    tokens: int = 0

    def following(self, outcomes: Sequence[Outcome]) -> SegmentPlan | None:
        """The calls of the images; new text embeddings enter the cache."""
        if self.rows is not None:
            return None
        texts = {label: self.texts.find_embedding(label, outcomes) for label in self.labels}
        vectors = np.stack([texts[label].vector for label in self.labels])
        calls: list[InferCall] = []
        rows = image_rows(
            self.images,
            self.model.part(takes=Role.PIXELS, returns=Role.MASKS),
            (Role.MASKS,),
            calls,
            shared={Role.CONDITIONS: vectors},
            most=max(1, _MASKS_PER_CALL // len(self.labels)),
        )
        tokens = sum(text.tokens for text in texts.values())
        return replace(self, calls=tuple(calls), rows=rows, tokens=tokens)

    def finish(self, outcomes: Sequence[Outcome]) -> SegmentResponse:
        if self.rows is None:  # a call of a label failed
            self.following(outcomes)
        assert self.rows is not None
        rows = self.rows

        def segment(index: int, image: PreparedImage) -> Segmentation:
            width, height = image.size
            logits = unwrap(rows[index]).read(outcomes, Role.MASKS)
            return Segmentation(
                index=index,
                masks=[_mask(label, one) for label, one in zip(self.labels, logits, strict=True)],
                width=width,
                height=height,
                mask_width=logits.shape[2],
                mask_height=logits.shape[1],
            )

        data = answer_each(self.images, segment, Segmentation)
        return SegmentResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.tokens)
        )


def _mask(label: str, logits: Array) -> Mask:
    """One label's mask.

    Args:
        logits: (height, width).
    """
    probabilities = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))  # sigmoid
    return Mask(
        label=label,
        mean_probability=float(probabilities.mean()),
        max_probability=float(probabilities.max()),
        mask=base64.b64encode(grey_png(probabilities)).decode("ascii"),
    )


class Segment(ServedTask[SegmentRequest, SegmentSection]):
    """Segmentation of images by labels given as text."""

    declaration = declared.TASK
    section = SegmentSection
    needs = (part(takes=Role.PIXELS, returns=Role.MASKS), TEXT_EMBEDDING, WHOLE_IMAGE)

    def prepare(
        self, request: SegmentRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> SegmentPlan:
        """Calls for labels that are not cached; those of the images follow."""
        if len(images) > self.most_items(request):
            raise InvalidRequest(
                f"{len(images)} images with {len(request.labels)} labels are more than {MAX_MASKS} "
                "masks: send fewer of them at once",
                field="images",
            )
        embedding = EmbeddingCalls(model)
        embedding.add_labels(request.labels)
        texts = embedding.batch_texts()
        prepared = prepare_images(images, model)
        labels = tuple(request.labels)
        return SegmentPlan(model, labels, texts, prepared, tuple(embedding.calls))

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, (Role.PIXELS, Role.MASKS), (Role.TOKENS, Role.EMBEDDING))

    def most_items(self, request: SegmentRequest) -> int:
        return MAX_MASKS // len(request.labels)

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_labels": MAX_LABELS}


TASK = Segment()
