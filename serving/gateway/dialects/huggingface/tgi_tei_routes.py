"""Paths of servers of one model: Text Generation Inference's, Text Embeddings Inference's.

They name no model: the one that answers is the task's only one, or its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from inference.errors import InvalidRequest
from inference.tasks.classify import TASK as CLASSIFY
from inference.tasks.rerank import TASK as RERANK
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.dialects.all_or_nothing import ConvertedRequest, ResponseMessage, check_each
from serving.gateway.dialects.huggingface.generation import GenerateRoute
from serving.gateway.dialects.huggingface.generation_messages import Generated
from serving.gateway.dialects.huggingface.images import LabelScore
from serving.gateway.dialects.huggingface.route import (
    PARAMETERS,
    HuggingFaceRoute,
    Truncating,
    Unserved,
)
from serving.gateway.dialects.huggingface.texts import EmbedRoute
from serving.gateway.requests.service import TaskRequest, TaskResponse
from triptych.messages import optional
from triptych.tasks.classify import MAX_TOP_K
from triptych.tasks.rerank import MAX_DOCUMENTS


class GeneratePath(GenerateRoute):
    """`POST /generate` of Text Generation Inference: an object in place of a list."""

    path = "/generate"
    parameters = []
    answer = Generated
    summary = "Continue a prompt, as Text Generation Inference."

    def render(self, request: TaskRequest, response: TaskResponse) -> Generated:
        found = super().render(request, response)
        return found if isinstance(found, Generated) else found[0]


class GenerateStreamPath(GeneratePath):
    """`POST /generate_stream`: always events."""

    path = "/generate_stream"
    only_streams = True
    summary = "Continue a prompt token by token, as Text Generation Inference."


class EmbedPath(EmbedRoute):
    """`POST /embed` of Text Embeddings Inference."""

    path = "/embed"
    parameters = []
    summary = "Embed texts, as Text Embeddings Inference."


class SimilarityPath(EmbedPath):
    """`POST /similarity` of Text Embeddings Inference."""

    path = "/similarity"
    summary = "Compare a sentence with others, as Text Embeddings Inference."


class RerankBody(Truncating):
    """Body of `POST /rerank`."""

    query: str
    texts: list[str] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    return_text: bool | None = None
    raw_scores: Unserved = None


class Rank(ResponseMessage):
    """One text."""

    index: int
    score: float
    text: str | None = None


class RerankPath(HuggingFaceRoute):
    """`POST /rerank` of Text Embeddings Inference."""

    task = RERANK
    body = RerankBody
    answer = list[Rank]
    renamed = {"documents": "texts"}
    path = "/rerank"
    parameters = []
    summary = "Rank texts by their relevance to a query, as Text Embeddings Inference."

    def take(self, body: RerankBody, model: LoadedModel | None) -> dict[str, Any]:
        return {
            "query": [body.query],
            "documents": body.texts,
            "return_documents": bool(body.return_text),
            **body.cuts(),
        }

    def results(self, data: Sequence[Any]) -> Sequence[Any]:
        (item,) = data
        check_each([item])
        found: Sequence[Any] = item.results
        return found

    def render(self, request: TaskRequest, response: TaskResponse) -> list[Rank]:
        return [Rank.copy_of(one) for one in self.results(response.data)]


_Texts = Annotated[list[str], Field(min_length=1, max_length=2)]


class PredictBody(Truncating):
    """Body of `POST /predict`: a text, a pair as a list of two, or a list of such lists."""

    inputs: str | _Texts | Annotated[list[_Texts], Field(min_length=1)]
    raw_scores: bool | None = optional("Bare logits in place of the model's own scores.")


class PredictPath(HuggingFaceRoute):
    """`POST /predict` of Text Embeddings Inference."""

    task = CLASSIFY
    body = PredictBody
    answer = list[LabelScore] | list[list[LabelScore]]
    renamed = {**PARAMETERS, "pairs": "inputs"}
    path = "/predict"
    parameters = []
    summary = "Classify texts or pairs of texts, as Text Embeddings Inference."

    def take(self, body: PredictBody, model: LoadedModel | None) -> dict[str, Any]:
        """Texts, or pairs of texts.

        Raises:
            InvalidRequest: both in one request.
        """
        given, _ = _as_lists(body.inputs)
        lengths = {len(texts) for texts in given}
        if len(lengths) > 1:
            raise InvalidRequest(
                "inputs holds texts and pairs of texts: send them in two requests", field="inputs"
            )
        return {
            "texts": [texts[0] for texts in given] if lengths == {1} else None,
            "pairs": given if lengths == {2} else None,
            "top_k": MAX_TOP_K,
            "function_to_apply": "none" if body.raw_scores else None,
            **body.cuts(),
        }

    def render(
        self, request: TaskRequest, response: TaskResponse
    ) -> list[LabelScore] | list[list[LabelScore]]:
        """All labels, best first; of a batch a list each."""
        assert isinstance(request, ConvertedRequest)
        found = [[LabelScore.copy_of(one) for one in item.labels] for item in response.data]
        _, is_batch = _as_lists(request.body.inputs)
        return found if is_batch else found[0]


def _as_lists(inputs: str | list[str] | list[list[str]]) -> tuple[list[list[str]], bool]:
    """Each text or pair as a list, and whether they are a batch."""
    if isinstance(inputs, str):
        return [[inputs]], False
    batch = [texts for texts in inputs if isinstance(texts, list)]
    if batch:
        return batch, True
    return [[text for text in inputs if isinstance(text, str)]], False


TGI_PATHS: tuple[type[HuggingFaceRoute], ...] = (GeneratePath, GenerateStreamPath)
TEI_PATHS: tuple[type[HuggingFaceRoute], ...] = (EmbedPath, PredictPath, RerankPath, SimilarityPath)
