"""`text_classification`, `image_classification` and `zero_shot_classification`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from fastapi import Request
from pydantic import Field

from inference.errors import InvalidRequest
from inference.tasks.classify import TASK
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from serving.gateway.dialects.all_or_nothing import Closed
from serving.gateway.dialects.huggingface.images import LabelScore
from serving.gateway.dialects.huggingface.route import (
    PLACEHOLDER,
    PipelineTruncating,
    TaskRoute,
    label_of,
    model_of,
)
from serving.gateway.requests.service import Service, TaskRequest
from triptych.parameters import optional
from triptych.tasks.classify import DEFAULT_TOP_K, MAX_TOP_K, ClassifyRequest, TextPair
from triptych.tasks.zero_shot import MAX_LABELS

DEFAULT_TEMPLATE = "This example is {}."


class ClassificationParameters(PipelineTruncating):
    """Parameters of the three methods; the last three are those of `zero_shot_classification`.

    Of a text with a candidate, the longer one is cut first.
    """

    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)] | None = (
        optional("For a model that was trained for entailment.")
    )
    multi_label: bool | None = None
    hypothesis_template: str | None = optional(f"Contains {{}}. Default: {DEFAULT_TEMPLATE!r}.")


class ClassificationBody(Closed):
    """Body of `POST /hf/classify/{model}`, where it is not an image itself."""

    inputs: str = Field(description="A text; for a model of images, base64 or a data URI.")
    parameters: ClassificationParameters | None = None


@dataclass(frozen=True)
class ClassifyingRequest(TaskRequest):
    """A task request with what only this route reads."""

    hypotheses: Hypotheses | None = None


class ClassifyRoute(TaskRoute):
    """The three methods of classifiers."""

    task = TASK
    body = ClassificationBody
    answer = list[LabelScore] | list[list[LabelScore]]
    summary = (
        "Classify a text or an image, for `text_classification`, `image_classification` and "
        "`zero_shot_classification` of `InferenceClient`."
    )
    takes_images = True

    def convert(
        self, body: ClassificationBody | bytes, request: Request, service: Service
    ) -> TaskRequest:
        """The image, or the body in the task's terms."""
        model = model_of(request, service)
        label = label_of(request)
        if isinstance(body, bytes):
            message = ClassifyRequest(model=model.name, images=[PLACEHOLDER])
            return ClassifyingRequest(self.task, message, label, images=[body])
        given = body.parameters or ClassificationParameters()
        if given.candidate_labels is not None:
            hypotheses = _hypotheses(given, model)
            message = _pairs(body.inputs, hypotheses, model, truncate=given.truncates)
            return ClassifyingRequest(self.task, message, label, hypotheses=hypotheses)
        _check(given)
        reads_images = TASK.name in model.sections and list(TASK.inputs(model)) == ["images"]
        message = ClassifyRequest(
            model=model.name,
            texts=None if reads_images else [body.inputs],
            images=[PLACEHOLDER] if reads_images else None,
            top_k=given.top_k or DEFAULT_TOP_K,
            function_to_apply=given.function_to_apply,
            truncate=given.truncates,
        )
        images = [body.inputs] if reads_images else ()
        return ClassifyingRequest(self.task, message, label, images=images)

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[LabelScore] | list[list[LabelScore]]:
        """The labels, best first; of a text as the first of a list, where the client reads it."""
        assert isinstance(request, ClassifyingRequest)
        if request.hypotheses is not None:
            logits = [{one.label: one.score for one in item.labels} for item in data]
            return request.hypotheses.ranked(logits)
        (item,) = data
        scores = [LabelScore(label=one.label, score=one.score) for one in item.labels]
        return scores if request.images else [scores]


def _check(given: ClassificationParameters) -> None:
    """Raises InvalidRequest for a parameter that needs `candidate_labels`."""
    for name in ("multi_label", "hypothesis_template"):
        if getattr(given, name) is not None:
            raise InvalidRequest(f"{name} needs candidate_labels", field=name)


def _hypotheses(given: ClassificationParameters, model: LoadedModel) -> Hypotheses:
    """How the candidates are scored.

    Raises:
        InvalidRequest: parameters of another method, or no model of entailment.
    """
    if given.truncation == "only_first":
        raise InvalidRequest(
            "truncation is only_first: a text and its candidate are cut by longest_first",
            field="truncation",
        )
    for name in ("top_k", "function_to_apply"):
        if getattr(given, name) is not None:
            raise InvalidRequest(
                f"{name} does not go with candidate_labels: leave it out", field=name
            )
    section = model.sections.get(TASK.name)
    labels: Sequence[str] = getattr(section, "labels", ())
    return Hypotheses.of(
        labels,
        model.name,
        candidates=given.candidate_labels or (),
        template=given.hypothesis_template or DEFAULT_TEMPLATE,
        is_multi_label=bool(given.multi_label),
    )


def _pairs(
    text: str, hypotheses: Hypotheses, model: LoadedModel, *, truncate: bool
) -> ClassifyRequest:
    """The text with each hypothesis; logits of all labels are requested."""
    return ClassifyRequest(
        model=model.name,
        pairs=[TextPair(first=text, second=hypothesis) for hypothesis in hypotheses.texts],
        function_to_apply="none",
        top_k=MAX_TOP_K,
        truncate=truncate,
    )


_ENTAILMENT = "entail"
"""How the label of entailment begins, in lower case."""


@dataclass(frozen=True)
class Hypotheses:
    """One hypothesis for each candidate."""

    candidates: Sequence[str]
    texts: Sequence[str]
    entailment: str
    """The model's label of entailment."""
    contradiction: str
    """The model's label that entailment is weighed against, where several labels may hold."""
    is_multi_label: bool

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        model: str,
        *,
        candidates: Sequence[str],
        template: str,
        is_multi_label: bool,
    ) -> Self:
        """The hypotheses for a model.

        Args:
            labels: The model's, in the order of its logits.
            model: Its name, for errors.
            candidates: Labels to choose from.
            template: Contains `{}`.
            is_multi_label: Whether each candidate is scored by itself.

        Raises:
            InvalidRequest: no label of the model is that of entailment, an empty candidate, or a
                template without `{}`.
        """
        found = [label for label in labels if label.lower().startswith(_ENTAILMENT)]
        if not found or len(labels) < 2:
            known = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "") or "none"
            raise InvalidRequest(
                "candidate_labels needs a classifier of entailment, with a label that begins with "
                f"{_ENTAILMENT!r}: the labels of {model} are {known}",
                field="candidate_labels",
            )
        if "{}" not in template:
            raise InvalidRequest(
                "hypothesis_template has no {} where the label belongs", field="hypothesis_template"
            )
        for index, candidate in enumerate(candidates):
            check_is_not_blank(candidate, f"candidate_labels.{index}")
        # The choice of `transformers`: the first label, or the last one if entailment is the first.
        contradiction = labels[-1] if labels[0] == found[0] else labels[0]
        texts = [template.replace("{}", candidate) for candidate in candidates]
        return cls(candidates, texts, found[0], contradiction, is_multi_label)

    def ranked(self, logits: Sequence[Mapping[str, float]]) -> list[LabelScore]:
        """The candidates, best first.

        Args:
            logits: Of each hypothesis, by the model's labels.
        """
        entailed = np.array([row[self.entailment] for row in logits])
        if self.is_multi_label or len(logits) == 1:
            against = np.array([row[self.contradiction] for row in logits])
            scores = np.exp(-np.logaddexp(0.0, against - entailed))
        else:
            weights = np.exp(entailed - entailed.max())
            scores = weights / weights.sum()
        return [
            LabelScore(label=self.candidates[i], score=float(scores[i]))
            for i in np.argsort(-scores, kind="stable")
        ]
