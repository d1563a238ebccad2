"""`caption`: images described in words."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triptych.messages import Alternative, Item, Message, OneOrMany, Response, StreamRequest
from triptych.parameters import Beams
from triptych.task import Command, Task


class CaptionRequest(StreamRequest):
    """Request of `caption`. As multipart, `images` are files, the other fields text."""

    images: OneOrMany = Field(description="Base64 or data URIs.")
    prompt: str | None = Field(default=None, description="First words of the caption.")
    num_beams: Beams | None = Field(
        default=None, description="Beam width; the checkpoint's own by default."
    )
    alternatives: Beams | None = Field(
        default=None, description="Number of captions per image, best first."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="Maximum number of generated tokens, the end token included."
    )
    return_attention: bool | None = Field(
        default=None, description="Return the attention of each token over the image patches."
    )


class Attention(Message):
    """Attention over the image: one row of `weights` for each token."""

    tokens: list[str]
    grid: list[int] = Field(description="Rows and columns of patches.")
    weights: list[list[float]] = Field(description="Tokens x patches, row by row of the grid.")


class Caption(Item):
    """The caption of one image."""

    text: str | None = None
    score: float | None = None
    alternatives: list[Alternative] | None = None
    attention: Attention | None = None


class CaptionResponse(Response[Caption]):
    """Response of `caption`."""


TASK = Task(
    name="caption",
    summary="Describe images in words.",
    request=CaptionRequest,
    response=CaptionResponse,
    inputs="images",
    not_streamed=("num_beams", "alternatives", "return_attention"),
    command=Command(
        examples=(
            "triptych caption boat.png",
            "triptych caption *.jpg --num-beams 4 --alternatives 4",
            "triptych caption boat.png --stream",
            "curl -s https://example.org/a.png | triptych caption -",
        ),
    ),
    sample={"images": ["{image}"]},
)
