"""`embed`: texts or images as vectors of one space."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, model_validator

from triptych.messages import (
    FrameCounts,
    Item,
    OneOrMany,
    Request,
    Response,
    TruncationParameters,
    cut_characters,
    optional,
)
from triptych.task import Command, Task


class EmbedRequest(Request, TruncationParameters):
    """Request of `embed`: `texts` or `images`; as multipart, `images` are files, the rest text."""

    texts: OneOrMany | None = optional("Texts to embed.")
    images: OneOrMany | None = optional("Base64 or data URIs.")
    frame_counts: FrameCounts | None = None
    normalize: bool = Field(
        default=True,
        description="Scale embeddings to unit length; false for models whose graphs do not.",
    )
    prompt_name: str | None = optional("The model's prompt of this name is put before each text.")
    prompt: str | None = optional("Put before each text.")

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> Self:
        if (self.texts is None) == (self.images is None):
            raise ValueError("give either texts or images")
        if self.prompt is not None and self.prompt_name is not None:
            raise ValueError("give either prompt or prompt_name")
        if self.images is not None and (self.prompt is not None or self.prompt_name is not None):
            raise ValueError("a prompt is for texts")
        if self.images is not None and self.truncate:
            raise ValueError("truncate is for texts: leave it out")
        if self.frame_counts is not None and self.images is None:
            raise ValueError("frame_counts is for images: leave it out")
        if self.frame_counts is not None and not self.normalize:
            raise ValueError("averages of frames have unit length: leave normalize out")
        return self


class Embedding(Item):
    """The embedding of one text, image or list of frames."""

    embedding: list[float] | None = None  # where it is computed, an array of float64
    truncated_characters: int | None = cut_characters()

    @field_serializer("embedding", mode="wrap")
    def _listed(self, value: Any, write: SerializerFunctionWrapHandler) -> list[float] | None:
        return write(value.tolist() if hasattr(value, "tolist") else value)  # type: ignore[no-any-return]


class EmbedResponse(Response[Embedding]):
    """Response of `embed`."""


def npy(items: Sequence[Embedding], images: Sequence[bytes | Path]) -> bytes:
    """The embeddings (items, D) as float32 in NumPy's file format."""
    import numpy as np  # here, so that other commands start without it

    file = io.BytesIO()
    np.save(file, np.array([item.embedding for item in items], dtype=np.float32))
    return file.getvalue()


TASK = Task(
    name="embed",
    summary="Embed texts or images as vectors; their dot product is the cosine similarity.",
    request=EmbedRequest,
    response=EmbedResponse,
    inputs=("texts", "images"),
    command=Command(
        examples=(
            'triptych embed "a red circle" "a blue square"',
            "triptych embed --images boat.png --images horse.png --output images.npy",
            "triptych embed --images frame-001.jpg --images frame-002.jpg --frame-count 2",
            "triptych embed --file texts.txt --output texts.npy",
        ),
        formats={".npy": npy},
    ),
    sample={"texts": ["{sentence}"]},
)
