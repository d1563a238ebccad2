"""`caption`: images described in words."""

from __future__ import annotations

from pydantic import Field

from triptych.messages import (
    FINISH_REASON,
    Alternative,
    Beams,
    Item,
    Message,
    OneOrMany,
    OutputParameters,
    Response,
    StreamRequest,
    earlier_name_of,
    optional,
)
from triptych.task import Command, Task

INSTRUCTION = "Describe this image."


class CaptionRequest(StreamRequest, OutputParameters):
    """Request of `caption`. As multipart, `images` are files, the other fields text.

    Parameters mean what they mean in `generate`: tokens are sampled when a sampling parameter is
    given. Without one, several captions of an image (`n`) are the best of a beam search.
    """

    images: OneOrMany = Field(description="Base64 or data URIs.")
    prompt: str | None = optional(
        "First words of the caption; of a model that answers instructions, the instruction. "
        f"Its default: {INSTRUCTION!r}."
    )
    alternatives: Beams | None = earlier_name_of("n")
    return_attention: bool | None = optional(
        "Return the attention of each token over the image patches."
    )


class Attention(Message):
    """Attention over the image: one row of `weights` for each token."""

    tokens: list[str]
    grid: list[int] = Field(description="Rows and columns of patches.")
    weights: list[list[float]] = Field(description="Tokens x patches, row by row of the grid.")


class Caption(Item):
    """The caption of one image."""

    text: str | None = None
    finish_reason: str | None = FINISH_REASON
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
    not_streamed=(
        "num_beams",
        "length_penalty",
        "early_stopping",
        "n",
        "alternatives",
        "best_of",
        "return_attention",
    ),
    command=Command(
        examples=(
            "triptych caption boat.png",
            "triptych caption *.jpg --num-beams 4 -n 4",
            "triptych caption boat.png --top-p 0.9 --seed 7 -n 3",
            "triptych caption boat.png --stream",
            "curl -s https://example.org/a.png | triptych caption -",
        )
    ),
    sample={"images": ["{image}"]},
)
