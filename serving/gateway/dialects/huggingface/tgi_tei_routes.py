"""Paths of servers of one model: Text Generation Inference's, Text Embeddings Inference's.

They name no model: the one that answers is the task's only one, or its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from pydantic import Field

from inference.tasks.rerank import TASK as RERANK
from serving.gateway.dialects.all_or_nothing import Closed, Open, check_each
from serving.gateway.dialects.huggingface.features import EmbedRoute
from serving.gateway.dialects.huggingface.generation import GenerateRoute
from serving.gateway.dialects.huggingface.generation_messages import Generated
from serving.gateway.dialects.huggingface.route import TaskRoute, Unserved, label_of
from serving.gateway.requests.service import Service, TaskRequest
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


class RerankBody(Closed):
    """Body of `POST /rerank`."""

    defaults = {"truncation_direction": ("Right", "right")}

    query: str
    texts: list[str] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    return_text: bool | None = None
    truncate: bool | None = None
    raw_scores: Unserved = None
    truncation_direction: Unserved = None


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
            truncate=bool(body.truncate),
        )
        return TaskRequest(self.task, message, label_of(request))

    def answered(self, request: TaskRequest, data: Sequence[Any]) -> list[Rank]:
        """The texts, best first; an error of one is that of the request."""
        (item,) = data
        check_each(item.results)
        return [Rank(index=one.index, score=one.score, text=one.text) for one in item.results]


TGI_PATHS: tuple[type[TaskRoute], ...] = (GeneratePath, GenerateStreamPath)
TEI_PATHS: tuple[type[TaskRoute], ...] = (EmbedPath, RerankPath, SimilarityPath)
