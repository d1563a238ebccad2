"""Zero-shot classification (CLIP, arXiv 2103.00020, section 3.1): pictures against label texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serving.bundle import Role
from serving.errors import InvalidRequest, TriptychError
from serving.tasks.batch import attempt_each, in_place, unwrap
from serving.tasks.buckets import ROWS, buckets
from serving.tasks.call import Array, InferCall, Outcome
from serving.tasks.embeddings import Embedded, EmbeddingCache, Vector
from serving.tasks.model import LoadedModel, TaskLimits
from serving.tasks.picture import Picture, prepare_pictures
from triptych.messages import Usage
from triptych.tasks.zero_shot import (
    DEFAULT_TEMPLATE,
    Classification,
    LabelScore,
    ZeroShotRequest,
    ZeroShotResponse,
)


@dataclass(frozen=True)
class Row:
    """Where a picture's or a text's embedding will be: a call's number and a row in it."""

    call: int
    row: int


@dataclass(frozen=True)
class ZeroShotPlan:
    """The calls of one request and how their outcomes become its answer."""

    model: LoadedModel
    labels: tuple[str, ...]
    templates: tuple[str, ...]
    known: Mapping[str, Embedded]
    """Texts embedded before."""
    awaited: Mapping[str, tuple[Row, int]]
    """Texts to embed: where they will be, and their tokens."""
    pictures: tuple[Row | TriptychError, ...]
    calls: tuple[InferCall, ...]
    cache: EmbeddingCache

    def finish(self, outcomes: Sequence[Outcome]) -> ZeroShotResponse:
        """The answer, given one outcome for each call; new text embeddings enter the cache.

        Raises:
            TriptychError: a label could not be embedded, or no picture; the first one's error.
        """
        texts = {**self.known, **self._embedded(outcomes)}
        labels = self._label_matrix(texts)

        def classified(index: int, row: Row | TriptychError) -> Classification:
            picture = _at(outcomes, unwrap(row))
            return Classification(index=index, labels=self._ranked(picture, labels))

        results = attempt_each(self.pictures, classified)
        return ZeroShotResponse(
            model=self.model.name,
            data=in_place(results, Classification),
            usage=Usage(prompt_tokens=sum(text.tokens for text in texts.values())),
        )

    def _embedded(self, outcomes: Sequence[Outcome]) -> dict[str, Embedded]:
        manifest = self.model.manifest
        fresh = {
            text: Embedded(_at(outcomes, row).copy(), tokens)
            for text, (row, tokens) in self.awaited.items()
        }
        for text, entry in fresh.items():
            self.cache.put(manifest.name, manifest.version, text, entry)
        return fresh

    def _label_matrix(self, texts: Mapping[str, Embedded]) -> npt.NDArray[np.float64]:
        """(labels, D): each label's templates averaged and normalised again."""
        rows = [
            np.mean([texts[render(t, label)].vector for t in self.templates], axis=0)
            for label in self.labels
        ]
        matrix = np.asarray(rows, dtype=np.float64)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        return np.asarray(matrix / lengths)

    def _ranked(self, picture: Vector, labels: npt.NDArray[np.float64]) -> list[LabelScore]:
        cosines = labels @ picture.astype(np.float64)
        logits = self.model.manifest.tasks["zero-shot"]["logit_scale"] * cosines
        weights = np.exp(logits - logits.max())
        scores = weights / weights.sum()
        order = np.argsort(-logits, kind="stable")
        return [
            LabelScore(label=self.labels[i], score=float(scores[i]), cosine=float(cosines[i]))
            for i in order
        ]


def prepare(
    request: ZeroShotRequest,
    pictures: Sequence[Picture],
    model: LoadedModel,
    limits: TaskLimits,
    cache: EmbeddingCache,
) -> ZeroShotPlan:
    """A request's calls: label texts that the cache lacks, and the pictures.

    Args:
        request: Its `images` are not read: over multipart and gRPC they are not text.
        pictures: The images, in the request's order.
        cache: Label embeddings of earlier requests.

    Raises:
        InvalidRequest: too many pictures, an empty label, a template without `{}`.
        TooLong: a label in its template is longer than the model takes.
        TriptychError: no picture can be read; the first one's error.
    """
    templates = tuple(request.templates or [DEFAULT_TEMPLATE])
    texts = _texts(request.labels, templates)
    manifest = model.manifest
    found = {text: cache.get(manifest.name, manifest.version, text) for text in texts}
    known = {text: entry for text, entry in found.items() if entry is not None}
    missing = {text: field for text, field in texts.items() if text not in known}
    calls: list[InferCall] = []
    awaited = _plan_texts(missing, model, limits, calls)
    rows = _plan_pictures(pictures, model, limits, calls)
    return ZeroShotPlan(
        model, tuple(request.labels), templates, known, awaited, rows, tuple(calls), cache
    )


def render(template: str, label: str) -> str:
    """A label in its template; other braces are left alone."""
    return template.replace("{}", label)


def _texts(labels: Sequence[str], templates: Sequence[str]) -> dict[str, str]:
    """Every text to embed, and the field that it comes from."""
    for index, template in enumerate(templates):
        if "{}" not in template:
            field = f"templates.{index}"
            raise InvalidRequest(f"{field} has no {{}} where the label belongs", field=field)
    for index, label in enumerate(labels):
        if not label.strip():
            raise InvalidRequest(f"labels.{index} is empty", field=f"labels.{index}")
    return {
        render(template, label): f"labels.{index}"
        for index, label in enumerate(labels)
        for template in templates
    }


def _plan_texts(
    fields: Mapping[str, str], model: LoadedModel, limits: TaskLimits, calls: list[InferCall]
) -> dict[str, tuple[Row, int]]:
    """Adds the calls that embed the texts; tells where each will be, and its tokens."""
    texts, sequences = list(fields), []
    for text, field in fields.items():
        ids = model.encode(text, field, limits)
        model.check_length(len(ids), field, what=" in its template")
        sequences.append(ids)
    spec = model.manifest.tokenizer
    assert spec is not None
    places: dict[str, tuple[Row, int]] = {}
    limit = model.manifest.limits.max_input_tokens
    for bucket in buckets(sequences, spec.pad_token_id, limit):
        for place, row in enumerate(bucket.rows):
            places[texts[row]] = (Row(len(calls), place), len(sequences[row]))
        inputs: dict[Role, Array] = {Role.TOKENS: bucket.token_ids, Role.LENGTHS: bucket.lengths}
        calls.append(_call(model, inputs))
    return places


def _plan_pictures(
    pictures: Sequence[Picture], model: LoadedModel, limits: TaskLimits, calls: list[InferCall]
) -> tuple[Row | TriptychError, ...]:
    """Adds the calls that embed the pictures; tells where each will be, or why it will not."""
    pixels = prepare_pictures(pictures, model, limits)
    readable = [picture for picture in pixels if not isinstance(picture, TriptychError)]
    rows: list[Row] = []
    for start in range(0, len(readable), ROWS):
        batch = readable[start : start + ROWS]
        rows.extend(Row(len(calls), place) for place in range(len(batch)))
        calls.append(_call(model, {Role.PIXELS: np.stack(batch)}))
    remaining = iter(rows)
    return tuple(
        picture if isinstance(picture, TriptychError) else next(remaining) for picture in pixels
    )


def _call(model: LoadedModel, inputs: Mapping[Role, Array]) -> InferCall:
    part = model.part(takes=next(iter(inputs)), returns=Role.EMBEDDING)
    return InferCall.of(part, inputs, returns=(Role.EMBEDDING,))


def _at(outcomes: Sequence[Outcome], place: Row) -> Vector:
    """One embedding (D,) of the outcomes.

    Raises:
        TriptychError: its call failed.
    """
    outputs = unwrap(outcomes[place.call])
    assert isinstance(outputs, Mapping)
    row: Vector = outputs[Role.EMBEDDING][place.row]
    return row
