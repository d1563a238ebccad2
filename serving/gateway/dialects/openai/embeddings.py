"""`POST /v1/embeddings`: texts or images as vectors, by the models that serve `embed`."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request

from inference.tasks.embed import TASK
from inference.tasks.shared.model_calls import Array
from serving.gateway.dialects.all_or_nothing import (
    MAX_DIMENSIONS,
    ConvertedRequest,
    ResponseMessage,
    shorten,
)
from serving.gateway.dialects.openai.common import OpenAIRoute
from serving.gateway.dialects.openai.completions import Texts
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import ClosedMessage, optional
from triptych.tasks.embed import EmbedRequest

Encoding = Literal["float", "base64"]


class EmbeddingRequest(ClosedMessage):
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


class EmbeddingItem(ResponseMessage):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(ResponseMessage):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(ResponseMessage):
    """Body of the response."""

    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingItem]
    usage: EmbeddingUsage


class EmbeddingsRoute(OpenAIRoute):
    """Embeddings."""

    path = "/v1/embeddings"
    task = TASK
    body = EmbeddingRequest
    answer = EmbeddingList
    summary = "Embed texts or images, in the form of OpenAI's API."
    renamed = {"texts": "input", "images": "input"}

    def convert(self, body: EmbeddingRequest, request: Request, service: Service) -> TaskRequest:
        texts, images = (None, body.input) if body.modality == "image" else (body.input, None)
        message = EmbedRequest(model=body.model, texts=texts, images=images)
        return ConvertedRequest(TASK, message, self.path, images=images or (), body=body)

    def render(self, request: TaskRequest, response: TaskResponse) -> EmbeddingList:
        assert isinstance(request, ConvertedRequest)
        data = [
            EmbeddingItem.model_construct(
                index=item.index, embedding=_encode(item.embedding, request.body)
            )
            for item in response.data
        ]
        tokens = response.usage.prompt_tokens
        return EmbeddingList(
            model=response.model,
            data=data,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )


def _encode(embedding: Array, body: EmbeddingRequest) -> Array | str:
    """A vector in the form that is requested.

    Raises:
        InvalidRequest: more dimensions than it has.
    """
    vector = shorten(embedding, body.dimensions)
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector
