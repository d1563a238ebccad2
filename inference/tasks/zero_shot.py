"""`zero-shot`: images against label texts (CLIP, arXiv 2103.00020, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from inference.bundle.manifest import Part, Role
from inference.errors import InvalidRequest, ServingError
from inference.tasks.embedding.embedding_calls import EmbeddedTexts, EmbeddingCalls, EmbeddingPlace
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.embedding_cache import Embedded, Vector
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.loaded_model import LoadedModel, check_characters, check_is_not_blank
from inference.tasks.shared.model_calls import (
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    unwrap,
)
from inference.tasks.shared.needs import IMAGE_EMBEDDING, TEXT_EMBEDDING
from inference.tasks.shared.rows import Row
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from triptych.messages import Usage
from triptych.tasks import zero_shot as declared
from triptych.tasks.zero_shot import (
    DEFAULT_TEMPLATE,
    MAX_LABELS,
    Classification,
    LabelScore,
    ZeroShotRequest,
    ZeroShotResponse,
)


class ZeroShotSection(TaskConfig):
    """How cosines become scores."""

    logit_scale: float
    """Factor of the cosines."""
    logit_bias: float = 0.0
    """Added to the scaled cosines (SigLIP)."""
    activation: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: probabilities among the labels; sigmoid: each label's own probability."""
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)
    """Of requests that have none."""

    def scores(self, cosines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Scores (labels,) of cosines (labels,), increasing with them."""
        logits = self.logit_scale * cosines + self.logit_bias
        if self.activation == "sigmoid":
            return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())


_VECTOR = Role.EMBEDDING
_VECTORS_PER_CALL = 1024
"""Of texts, which an image changes: 2 MB where they have 512 numbers."""


@dataclass(frozen=True)
class _Changed:
    """An image's vector, and where those of the texts are that it changed."""

    vector: Vector
    rows: tuple[Row, ...]

    def read(self, outcomes: Sequence[Outcome], role: Role) -> Vector:
        """The image's (D,)."""
        return self.vector

    def texts(self, outcomes: Sequence[Outcome]) -> npt.NDArray[np.float32]:
        """(texts, D)."""
        return np.concatenate([row.read(outcomes, _VECTOR) for row in self.rows])


@dataclass(frozen=True)
class ZeroShotPlan(Plan):
    """Calls that embed the labels that are not cached, and the images.

    Attributes:
        changes: What changes the vectors of texts for each image; None: they stay as they are.
    """

    model: LoadedModel
    section: ZeroShotSection
    labels: tuple[str, ...]
    templates: tuple[str, ...]
    texts: EmbeddedTexts
    images: tuple[EmbeddingPlace | ServingError, ...]
    calls: tuple[InferCall, ...]
    top_k: int | None = None
    changes: Part | None = None

    def following(self, outcomes: Sequence[Outcome]) -> Plan | None:
        """The calls that change the vectors of texts; new text embeddings enter the cache."""
        if self.changes is None:
            return None
        texts, part = self._embedded(outcomes), self.changes
        vectors = np.stack([text.vector for text in texts.values()])
        starts = range(0, len(vectors), _VECTORS_PER_CALL)
        calls: list[InferCall] = []

        def change(_: int, place: EmbeddingPlace | ServingError) -> _Changed:
            image, hidden = (unwrap(place).read(outcomes, r) for r in (_VECTOR, Role.HIDDEN))
            rows = tuple(Row(len(calls) + number, 0) for number in range(len(starts)))
            for start in starts:
                some = vectors[None, start : start + _VECTORS_PER_CALL]
                given = {Role.HIDDEN: hidden[None], Role.CONDITIONS: some}
                calls.append(InferCall.of(part, given, returns=(_VECTOR,)))
            return _Changed(image, rows)

        images = attempt_each(self.images, change, calls)
        known = EmbeddedTexts(self.model, texts, {})
        return replace(self, changes=None, texts=known, images=images, calls=tuple(calls))

    def finish(self, outcomes: Sequence[Outcome]) -> ZeroShotResponse:
        """The labels of each image; new text embeddings enter the cache."""
        if self.changes is not None:  # no plan follows a call that failed
            raise next(each for each in outcomes if isinstance(each, ServingError))
        texts = self._embedded(outcomes)
        shared = self._label_matrix({text: entry.vector for text, entry in texts.items()})

        def classify(index: int, place: EmbeddingPlace) -> Classification:
            labels = shared
            if isinstance(place, _Changed):
                labels = self._label_matrix(dict(zip(texts, place.texts(outcomes), strict=True)))
            image = place.read(outcomes, _VECTOR)
            return Classification(index=index, labels=self._rank(image, labels))

        data = answer_each(self.images, classify, Classification)
        return ZeroShotResponse(
            model=self.model.name,
            data=data,
            usage=Usage(prompt_tokens=sum(text.tokens for text in texts.values())),
        )

    def _embedded(self, outcomes: Sequence[Outcome]) -> dict[str, Embedded]:
        """Each text: a label in a template."""
        rendered = dict.fromkeys(render(t, label) for label in self.labels for t in self.templates)
        return {text: self.texts.find_embedding(text, outcomes) for text in rendered}

    def _label_matrix(self, vectors: Mapping[str, Vector]) -> npt.NDArray[np.float64]:
        """(labels, D): each label's templates averaged and normalised again."""
        rows = [
            np.mean([vectors[render(t, label)] for t in self.templates], axis=0)
            for label in self.labels
        ]
        matrix = np.asarray(rows, dtype=np.float64)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        return np.asarray(matrix / np.maximum(lengths, 1e-12))

    def _rank(self, image: Vector, labels: npt.NDArray[np.float64]) -> list[LabelScore]:
        cosines = labels @ image.astype(np.float64)
        scores = self.section.scores(cosines)
        return [
            LabelScore(label=self.labels[i], score=float(scores[i]), cosine=float(cosines[i]))
            for i in np.argsort(-cosines, kind="stable")[: self.top_k]
        ]


class ZeroShot(ServedTask[ZeroShotRequest, ZeroShotSection]):
    """Classification of images among labels given as text."""

    declaration = declared.TASK
    section = ZeroShotSection
    needs = (IMAGE_EMBEDDING, TEXT_EMBEDDING)

    def prepare(
        self, request: ZeroShotRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> ZeroShotPlan:
        section = self.section_of(model)
        templates = tuple(request.templates or section.templates)
        _check(request.labels, templates)
        embedding = EmbeddingCalls(model)
        places = {template: template.count(_PLACE) for template in templates}
        for index, label in enumerate(request.labels):
            for template in templates:
                field = f"labels.{index}"
                length = len(template) + places[template] * (len(label) - len(_PLACE))
                check_characters(length, field, model.text_limit)
                embedding.add_text(render(template, label), field, " in its template")
        texts = embedding.batch_texts()
        changes = model.manifest.part(takes=Role.CONDITIONS, returns=Role.EMBEDDING)
        returns = (Role.EMBEDDING, Role.HIDDEN) if changes else (Role.EMBEDDING,)
        rows = embedding.add_images(images, request.frame_counts, returns)
        return ZeroShotPlan(
            model,
            section,
            tuple(request.labels),
            templates,
            texts,
            rows,
            tuple(embedding.calls),
            request.top_k,
            changes,
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, *((role, Role.EMBEDDING) for role in _PARTS))

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_labels": MAX_LABELS}


_PLACE = "{}"
_PARTS = (Role.PIXELS, Role.TOKENS, Role.CONDITIONS)


def render(template: str, label: str) -> str:
    """A label in its template; other braces are left alone."""
    return template.replace(_PLACE, label)


def _check(labels: Sequence[str], templates: Sequence[str]) -> None:
    """Raises InvalidRequest for an empty label or a template without `{}`."""
    for index, template in enumerate(templates):
        if _PLACE not in template:
            field = f"templates.{index}"
            raise InvalidRequest(f"{field} has no {{}} where the label belongs", field=field)
    for index, label in enumerate(labels):
        check_is_not_blank(label, f"labels.{index}")


TASK = ZeroShot()
