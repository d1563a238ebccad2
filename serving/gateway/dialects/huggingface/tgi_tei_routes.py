"""Paths of servers of one model: Text Generation Inference's, Text Embeddings Inference's.

They name no model: the one that answers is the task's only one, or its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from inference.errors import InvalidRequest
from inference.tasks.classify import TASK as CLASSIFY
from inference.tasks.rerank import TASK as RERANK
from serving.gateway.dialects.all_or_nothing import Open, check_each
from serving.gateway.dialects.huggingface.generation import GenerateRoute
from serving.gateway.dialects.huggingface.generation_messages import Generated
from serving.gateway.dialects.huggingface.images import LabelScore
from serving.gateway.dialects.huggingface.route import (
    PARAMETERS,
    TaskRoute,
    Truncating,
    Unserved,
    label_of,
)
from serving.gateway.dialects.huggingface.texts import EmbedRoute
from serving.gateway.requests.service import Service, TaskRequest
from triptych.parameters import optional
from triptych.tasks.classify import MAX_TOP_K, ClassifyRequest
from triptych.tasks.rerank import MAX_DOCUMENTS, RerankRequest


class GeneratePath(GenerateRoute):
    """`POST /generate` of Text Generation Inference: an object in place of a list."""

    only_path = "/generate"
    answer = Generated
    summary = "Continue a prompt, as Text Generation Inference."

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> Generated:
        """The only one."""
        found = super().answered(request, data)
        return found if isinstance(found, Generated) else found[0]


class GenerateStreamPath(GeneratePath):
    """`POST /generate_stream`: always events."""

    only_path = "/generate_stream"
    only_streams = True
    summary = "Continue a prompt token by token, as Text Generation Inference."


class EmbedPath(EmbedRoute):
    """`POST /embed` of Text Embeddings Inference."""

    only_path = "/embed"
    summary = "Embed texts, as Text Embeddings Inference."


class SimilarityPath(EmbedRoute):
    """`POST /similarity` of Text Embeddings Inference."""

    only_path = "/similarity"
    summary = "Compare a sentence with others, as Text Embeddings Inference."


class RerankBody(Truncating):
    """Body of `POST /rerank`."""

    query: str
    texts: list[str] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    return_text: bool | None = None
    raw_scores: Unserved = None


class Rank(Open):
    """One text."""

    index: int
    score: float
    text: str | None = None


class RerankPath(TaskRoute):
    """`POST /rerank` of Text Embeddings Inference."""

    task = RERANK
    body = RerankBody
    answer = list[Rank]
    renamed = {"documents": "texts"}
    only_path = "/rerank"
    summary = "Rank texts by their relevance to a query, as Text Embeddings Inference."

    def convert(self, body: RerankBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        message = RerankRequest(
            query=[body.query],
            documents=body.texts,
            return_documents=bool(body.return_text),
            **body.cuts(),
        )
        return TaskRequest(self.task, message, label_of(request))

    def results(self, data: Sequence[Any]) -> Sequence[Any]:
        """Texts."""
        (item,) = data
        check_each([item])
        found: Sequence[Any] = item.results
        return found

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[Rank]:
        """The texts, best first."""
        found = self.results(data)
        return [Rank(index=one.index, score=one.score, text=one.text) for one in found]


_Texts = Annotated[list[str], Field(min_length=1, max_length=2)]


class PredictBody(Truncating):
    """Body of `POST /predict`: a text, a pair as a list of two, or a list of such lists."""

    inputs: str | _Texts | Annotated[list[_Texts], Field(min_length=1)]
    raw_scores: bool | None = optional("Bare logits in place of the model's own scores.")


@dataclass(frozen=True)
class PredictingRequest(TaskRequest):
    """A task request with what only this route reads."""

    is_batch: bool = False


class PredictPath(TaskRoute):
    """`POST /predict` of Text Embeddings Inference."""

    task = CLASSIFY
    body = PredictBody
    answer = list[LabelScore] | list[list[LabelScore]]
    renamed = {**PARAMETERS, "pairs": "inputs"}
    only_path = "/predict"
    summary = "Classify texts or pairs of texts, as Text Embeddings Inference."

    def convert(self, body: PredictBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms.

        Raises:
            InvalidRequest: texts and pairs in one request.
        """
        given, is_batch = _listed(body.inputs)
        lengths = {len(texts) for texts in given}
        if len(lengths) > 1:
            raise InvalidRequest(
                "inputs holds texts and pairs of texts: send them in two requests", field="inputs"
            )
        message = ClassifyRequest.model_validate(
            {
                "texts": [texts[0] for texts in given] if lengths == {1} else None,
                "pairs": given if lengths == {2} else None,
                "top_k": MAX_TOP_K,
                "function_to_apply": "none" if body.raw_scores else None,
                **body.cuts(),
            }
        )
        return PredictingRequest(self.task, message, label_of(request), is_batch=is_batch)

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[LabelScore] | list[list[LabelScore]]:
        """All labels, best first; of a batch a list each."""
        assert isinstance(request, PredictingRequest)
        found = [[LabelScore(label=one.label, score=one.score) for one in i.labels] for i in data]
        return found if request.is_batch else found[0]


def _listed(inputs: str | list[str] | list[list[str]]) -> tuple[list[list[str]], bool]:
    """Each text or pair as a list, and whether they are a batch."""
    if isinstance(inputs, str):
        return [[inputs]], False
    batch = [texts for texts in inputs if isinstance(texts, list)]
    if batch:
        return batch, True
    return [[text for text in inputs if isinstance(text, str)]], False


TGI_PATHS: tuple[type[TaskRoute], ...] = (GeneratePath, GenerateStreamPath)
TEI_PATHS: tuple[type[TaskRoute], ...] = (EmbedPath, PredictPath, RerankPath, SimilarityPath)
