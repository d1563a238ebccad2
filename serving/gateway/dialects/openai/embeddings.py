"""`POST /v1/embeddings`: texts or images as vectors, by the models that serve `embed`."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from inference.tasks.embed import TASK
from serving.gateway.dialects.all_or_nothing import MAX_DIMENSIONS, Closed, Open, shortened
from serving.gateway.dialects.openai.common import OpenAIDialect
from serving.gateway.dialects.openai.completions import Texts
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.parameters import optional
from triptych.tasks.embed import EmbedRequest

Encoding = Literal["float", "base64"]


class EmbeddingRequest(Closed):
    """Body of `POST /v1/embeddings`."""

    model: str
    input: Texts
    modality: Literal["text", "image"] = Field(
        default="text",
        description="image: the inputs are base64 or data URIs. An extension, for `extra_body`.",
    )
    encoding_format: Encoding = Field(
        default="float", description="base64: little-endian float32 numbers."
    )
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = optional(
        "The first so many numbers, scaled to unit length again: for models that were "
        "trained for it (Matryoshka representations)."
    )
    user: str | None = optional("Accepted and not used.")


class EmbeddingItem(Open):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Open):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Open):
    """Body of the response."""

    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingItem]
    usage: EmbeddingUsage


@dataclass(frozen=True)
class EncodedRequest(TaskRequest):
    """A task request with what only this route reads."""

    encoding: Encoding = "float"
    dimensions: int | None = None


class EmbeddingsDialect(OpenAIDialect):
    """Embeddings."""

    path = "/v1/embeddings"
    task = TASK
    request = EmbeddingRequest
    response = EmbeddingList
    name = "embeddings"
    summary = "Embed texts or images, in the form of OpenAI's API."
    parameters = {"texts": "input", "images": "input"}

    def convert(self, body: EmbeddingRequest, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        texts, images = (None, body.input) if body.modality == "image" else (body.input, None)
        return EncodedRequest(
            TASK,
            EmbedRequest(model=body.model, texts=texts, images=images),
            self.path,
            images=images or (),
            encoding=body.encoding_format,
            dimensions=body.dimensions,
        )

    def answered(self, request: TaskRequest, response: TaskResponse) -> EmbeddingList:
        """A list of embeddings."""
        assert isinstance(request, EncodedRequest)
        data = [
            EmbeddingItem(index=item.index, embedding=_encoded(item.embedding, request))
            for item in response.data
        ]
        tokens = response.usage.prompt_tokens
        return EmbeddingList(
            model=response.model,
            data=data,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )


def _encoded(embedding: list[float], request: EncodedRequest) -> list[float] | str:
    """A vector as the request wants it.

    Raises:
        InvalidRequest: more dimensions than it has.
    """
    vector = shortened(embedding, request.dimensions)
    if request.encoding == "base64":
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()
    return vector
