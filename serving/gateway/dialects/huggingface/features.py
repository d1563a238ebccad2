"""`feature_extraction` and `sentence_similarity`: vectors of texts, and their cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request
from pydantic import Discriminator, Field, Tag

from inference.errors import InvalidRequest
from inference.tasks.embed import TASK
from serving.gateway.dialects.all_or_nothing import MAX_DIMENSIONS, Closed, shortened
from serving.gateway.dialects.huggingface.route import TaskRoute, Truncating, label_of
from serving.gateway.requests.service import Service, TaskRequest
from triptych.messages import OneOrMany
from triptych.tasks.embed import EmbedRequest


class SimilarityParameters(Truncating):
    """`parameters` of a comparison, in Text Embeddings Inference."""

    prompt_name: str | None = None


class Sentences(Closed):
    """`inputs` of `sentence_similarity`."""

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1)]


def _kind(value: object) -> str:
    return "comparison" if isinstance(value, dict | Sentences) else "texts"


class FeaturesBody(Truncating):
    """Body of `POST /hf/embed/{model}`; its options are not below `parameters`."""

    inputs: Annotated[
        Annotated[OneOrMany, Tag("texts")] | Annotated[Sentences, Tag("comparison")],
        Discriminator(_kind),
    ]
    parameters: SimilarityParameters | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float"] | None = None


@dataclass(frozen=True)
class FeaturesRequest(TaskRequest):
    """A task request with what only this route reads."""

    is_comparison: bool = False
    """Whether the cosines of the first text with the others are the answer."""
    dimensions: int | None = None


class EmbedRoute(TaskRoute):
    """The two methods of embedding models."""

    task = TASK
    body = FeaturesBody
    answer = list[float] | list[list[float]]
    summary = (
        "Embed texts, for `feature_extraction` and `sentence_similarity` of `InferenceClient`."
    )

    def convert(self, body: FeaturesBody, request: Request, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        inputs = body.inputs
        is_comparison = isinstance(inputs, Sentences)
        if is_comparison and body.normalize is not None:
            raise InvalidRequest("normalize is for texts alone: leave it out", field="normalize")
        given = body.parameters or SimilarityParameters()
        cuts = given if given.truncate else body
        message = EmbedRequest(
            model=self.model_name(request, service),
            texts=[inputs.source_sentence, *inputs.sentences]
            if isinstance(inputs, Sentences)
            else inputs,
            normalize=body.normalize is not False,
            prompt_name=body.prompt_name or given.prompt_name,
            **cuts.cuts(),
        )
        return FeaturesRequest(
            self.task,
            message,
            label_of(request),
            is_comparison=is_comparison,
            dimensions=body.dimensions,
        )

    def answered(
        self, request: TaskRequest, data: Sequence[Any]
    ) -> list[float] | list[list[float]]:
        """A vector a text, or a cosine a sentence."""
        assert isinstance(request, FeaturesRequest)
        vectors = [shortened(item.embedding, request.dimensions) for item in data]
        if not request.is_comparison:
            return vectors
        first, *others = np.array(vectors)
        cosines: list[float] = (np.array(others) @ first).tolist()
        return cosines
