"""Texts, images, images with questions, and texts with candidates."""

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
from serving.gateway.dialects.all_or_nothing import ConvertedRequest
from serving.gateway.dialects.huggingface.images import AskingBody, LabelScore, ScoredAnswer
from serving.gateway.dialects.huggingface.route import (
    HuggingFaceRoute,
    PipelineTruncating,
    label_of,
    value_at,
)
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import optional
from triptych.tasks.classify import MAX_TOP_K, ClassifyRequest, TextPair
from triptych.tasks.zero_shot import MAX_LABELS

DEFAULT_TEMPLATE = "This example is {}."


class ClassificationParameters(PipelineTruncating):
    """Parameters of the methods; the last three are those of `zero_shot_classification`.

    Of a text with a candidate, the longer one is cut first.
    """

    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    candidate_labels: Annotated[list[str], Field(min_length=1, max_length=MAX_LABELS)] | None = (
        optional("For a model that was trained for entailment.")
    )
    multi_label: bool | None = None
    hypothesis_template: str | None = optional(f"Contains {{}}. Default: {DEFAULT_TEMPLATE!r}.")


class ClassificationBody(AskingBody):
    """Body of `POST /hf/classify/{model}`, where it is not an image itself.

    `inputs` is a text or, for a model of images, base64 or a data URI.
    """

    parameters: ClassificationParameters | None = None


@dataclass(frozen=True)
class HypothesesRequest(ConvertedRequest):
    """A request to choose among candidates."""

    hypotheses: Hypotheses | None = None


class ClassifyRoute(HuggingFaceRoute):
    """The methods of classifiers."""

    path = "/hf/classify/{model}"
    task = TASK
    body = ClassificationBody
    answer = list[LabelScore] | list[list[LabelScore]] | list[ScoredAnswer]
    summary = (
        "Classify a text or an image, for `text_classification`, `image_classification`, "
        "`visual_question_answering` and `zero_shot_classification` of `InferenceClient`."
    )
    takes_images = True
    fields = {
        "texts": "only_input",
        "top_k": "parameters.top_k",
        "function_to_apply": "parameters.function_to_apply",
        "truncate": "parameters.truncates",
    }

    def convert(
        self, body: ClassificationBody | bytes, request: Request, service: Service
    ) -> TaskRequest:
        """An image or a text to classify, or a text with each hypothesis about it."""
        given = None if isinstance(body, bytes) else body.parameters
        if isinstance(body, bytes) or given is None or given.candidate_labels is None:
            return super().convert(body, request, service)
        if body.asked is not None:
            raise InvalidRequest(
                "candidate_labels are of a text: leave the question out", field="question"
            )
        model = service.catalog.find(request.path_params["model"])
        hypotheses = Hypotheses.of(given, model)
        message = ClassifyRequest(
            model=model.name,
            pairs=[TextPair(first=body.only_input, second=text) for text in hypotheses.texts],
            function_to_apply="none",  # the logits of all labels
            top_k=MAX_TOP_K,
            truncate=given.truncates,
        )
        return HypothesesRequest(
            self.task, message, label_of(request), body=body, hypotheses=hypotheses
        )

    def take(self, body: Any, model: LoadedModel | None) -> dict[str, Any]:
        """The input is an image where the model reads images."""
        found = super().take(body, model)
        if isinstance(body, bytes):
            return found
        for name in ("multi_label", "hypothesis_template"):
            if value_at(body, f"parameters.{name}") is not None:
                raise InvalidRequest(f"{name} needs candidate_labels", field=name)
        if body.asked is not None:
            return found | {"images": found["texts"], "texts": body.asked}
        assert model is not None
        if TASK.name in model.sections and list(TASK.inputs(model)) == ["images"]:
            found["images"] = found.pop("texts")
        return found

    def render(
        self, request: TaskRequest, response: TaskResponse
    ) -> list[LabelScore] | list[list[LabelScore]] | list[ScoredAnswer]:
        """The labels, best first; of a text as the first of a list, where the client reads it."""
        if isinstance(request, HypothesesRequest) and request.hypotheses is not None:
            logits = [{one.label: one.score for one in item.labels} for item in response.data]
            return request.hypotheses.rank(logits)
        (item,) = response.data
        if request.images and getattr(request.message, "texts", None):
            return [ScoredAnswer.copy_of(one) for one in item.labels]
        scores = [LabelScore.copy_of(one) for one in item.labels]
        return scores if request.images else [scores]


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
    """Whether each candidate is scored by itself."""

    @classmethod
    def of(cls, given: ClassificationParameters, model: LoadedModel) -> Self:
        """The hypotheses about the candidates of a request.

        Raises:
            InvalidRequest: parameters of another method, no label of the model is that of
                entailment, an empty candidate, or a template without `{}`.
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
        labels: Sequence[str] = getattr(model.sections.get(TASK.name), "labels", ())
        found = [label for label in labels if label.lower().startswith(_ENTAILMENT)]
        if not found or len(labels) < 2:
            known = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "") or "none"
            raise InvalidRequest(
                "candidate_labels needs a classifier of entailment, with a label that begins with "
                f"{_ENTAILMENT!r}: the labels of {model.name} are {known}",
                field="candidate_labels",
            )
        template = given.hypothesis_template or DEFAULT_TEMPLATE
        if "{}" not in template:
            raise InvalidRequest(
                "hypothesis_template has no {} where the label belongs", field="hypothesis_template"
            )
        candidates = given.candidate_labels or ()
        for index, candidate in enumerate(candidates):
            check_is_not_blank(candidate, f"candidate_labels.{index}")
        # The choice of `transformers`: the first label, or the last one if entailment is the first.
        contradiction = labels[-1] if labels[0] == found[0] else labels[0]
        texts = [template.replace("{}", candidate) for candidate in candidates]
        return cls(candidates, texts, found[0], contradiction, bool(given.multi_label))

    def rank(self, logits: Sequence[Mapping[str, float]]) -> list[LabelScore]:
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
