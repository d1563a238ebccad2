"""`zero-shot`: images classified among labels given as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triptych.messages import FrameCounts, Item, Message, OneOrMany, Request, Response, optional
from triptych.task import Command, Task

MAX_LABELS = 1000
MAX_TEMPLATES = 100
DEFAULT_TEMPLATE = "a photo of a {}"


class ZeroShotRequest(Request):
    """Request of `zero-shot`. As multipart, `images` are files, the other fields text."""

    images: OneOrMany = Field(description="Base64 or data URIs.")
    frame_counts: FrameCounts | None = None
    labels: list[str] = Field(
        min_length=1, max_length=MAX_LABELS, description="Classes to choose from."
    )
    templates: list[str] | None = optional(
        f"Each contains {{}}; several are averaged. Default: {DEFAULT_TEMPLATE!r}.",
        min_length=1,
        max_length=MAX_TEMPLATES,
    )
    top_k: int | None = optional(
        "Return only this many labels, the best ones; scores stay those among all.",
        ge=1,
        le=MAX_LABELS,
    )


class LabelScore(Message):
    """One label: its probability among the labels, and its cosine with the image."""

    label: str
    score: float
    cosine: float


class Classification(Item):
    """The labels of one image or list of frames, best first."""

    labels: list[LabelScore] | None = None


class ZeroShotResponse(Response[Classification]):
    """Response of `zero-shot`."""


def render(
    item: Classification,
    name: str | None,
    top: Annotated[int, Field(ge=1, description="Earlier name of --top-k.")] | None = None,
) -> Iterator[str]:
    """Probability and label, one pair per line; above them the image's name among several."""
    if name is not None:
        yield name
    for entry in (item.labels or ())[:top]:
        yield f"{entry.score:7.2%}  {entry.label}"


TASK = Task(
    name="zero-shot",
    summary="Classify images among labels given as text, best first.",
    request=ZeroShotRequest,
    response=ZeroShotResponse,
    inputs="images",
    command=Command(
        examples=(
            'triptych zero-shot boat.png --label "a boat" --label "a horse"',
            "triptych zero-shot *.png --labels-file labels.txt --top-k 3",
            'triptych zero-shot boat.png -l boat -l horse --template "a drawing of a {}"',
            "triptych zero-shot frame-*.jpg -l swimming -l running --frame-count 12",
        ),
        short={"labels": "l", "top_k": "k"},
        render=render,
    ),
    sample={
        "images": ["{image}"],
        "labels": [
            f"{colour} {shape}"
            for colour in ("red", "green", "blue", "yellow")
            for shape in ("circle", "square", "triangle")
        ],
    },
)
