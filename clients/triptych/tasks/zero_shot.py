"""`zero-shot`: images classified among labels given as text."""

from __future__ import annotations

from pydantic import Field

from triptych.messages import Item, Message, OneOrMany, Request, Response
from triptych.task import Task

MAX_LABELS = 1000
MAX_TEMPLATES = 100
DEFAULT_TEMPLATE = "a photo of a {}"


class ZeroShotRequest(Request):
    """Request of `zero-shot`. As multipart, `images` are files, the other fields text."""

    images: OneOrMany = Field(description="Base64 or data URIs.")
    labels: list[str] = Field(
        min_length=1, max_length=MAX_LABELS, description="Classes to choose from."
    )
    templates: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TEMPLATES,
        description=f"Each contains {{}}; several are averaged. Default: {DEFAULT_TEMPLATE!r}.",
    )


class LabelScore(Message):
    """One label: its probability among the labels, and its cosine with the image."""

    label: str
    score: float
    cosine: float


class Classification(Item):
    """The labels of one image, best first."""

    labels: list[LabelScore] | None = None


class ZeroShotResponse(Response[Classification]):
    """Response of `zero-shot`."""


TASK = Task(
    name="zero-shot",
    summary="Classify images among labels given as text, best first.",
    request=ZeroShotRequest,
    response=ZeroShotResponse,
    inputs="images",
)
