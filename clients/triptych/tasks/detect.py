"""`detect`: boxes of things in images, for labels given as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from pydantic import Field

from triptych.errors import TriptychError
from triptych.messages import FINISH_REASON, Item, Message, OneOrMany, Request, Response, optional
from triptych.task import Command, Task

MAX_LABELS = 1000
DEFAULT_THRESHOLD = 0.1
DEFAULT_TEXT_THRESHOLD = 0.25
_COLOURS = ("#e6194b", "#4363d8", "#3cb44b", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


class DetectRequest(Request):
    """Request of `detect`. As multipart, `images` are files, the other fields text."""

    images: OneOrMany = Field(description="Base64 or data URIs.")
    labels: list[str] | None = optional(
        "What to look for, e.g. `a red circle`. Without it a model that names things itself "
        "returns all that it finds.",
        min_length=1,
        max_length=MAX_LABELS,
    )
    threshold: float | None = optional(
        f"Least score of a box that is returned. Default: {DEFAULT_THRESHOLD}; "
        f"{DEFAULT_TEXT_THRESHOLD} of a model that reads all labels as one text; 0 of a model that "
        "writes boxes into an answer.",
        ge=0,
        le=1,
    )
    text_threshold: float | None = optional(
        "Least score of a word that is part of a box's label, of a model that reads all labels as "
        f"one text; others ignore it. Default: {DEFAULT_TEXT_THRESHOLD}.",
        ge=0,
        le=1,
    )
    top_k: int | None = optional("Return at most this many boxes of an image.", ge=1, le=10_000)


class Box(Message):
    """A thing that was found: its label and score, and its box in pixels of the upright image.

    `objectness`, from 0 to 1, is how sure the model is that anything is there, whatever the labels;
    models without that score (OWL-ViT) leave it out.
    """

    label: str
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float
    objectness: float | None = None


class Detection(Item):
    """What was found in one image, best first, and the image's size in pixels.

    Models that write boxes into an answer have a `finish_reason`: a cut answer may lack some.
    """

    boxes: list[Box] | None = None
    width: int | None = None
    height: int | None = None
    finish_reason: str | None = FINISH_REASON


class DetectResponse(Response[Detection]):
    """Response of `detect`."""


def render(item: Detection, name: str | None) -> Iterator[str]:
    """A box in one line: score, corners and label; above them the image's name among several."""
    if name is not None:
        yield name
    for box in item.boxes or ():
        corners = (box.x_min, box.y_min, box.x_max, box.y_max)
        yield f"{box.score:7.2%}  {' '.join(f'{place:7.1f}' for place in corners)}  {box.label}"


def picture(items: Sequence[Detection], images: Sequence[bytes | Path]) -> bytes:
    """The image as PNG, with its boxes drawn over it; each label has a colour.

    Raises:
        TriptychError: several images, or no Pillow to draw with.
    """
    if len(items) != 1:
        raise TriptychError(f"a picture shows the boxes of one image, not of {len(items)}")
    try:
        from PIL import Image, ImageDraw, ImageFont, ImageOps
    except ImportError:
        raise TriptychError("drawing boxes needs Pillow: pip install pillow") from None
    found = items[0].boxes or ()
    labels = dict.fromkeys(box.label for box in found)
    colours = dict(zip(labels, cycle(_COLOURS), strict=False))
    file = io.BytesIO(images[0]) if isinstance(images[0], bytes) else images[0]
    with Image.open(file) as opened:
        drawn = ImageOps.exif_transpose(opened).convert("RGB")
    pen = ImageDraw.Draw(drawn)
    width = max(1, min(drawn.size) // 150)
    font = ImageFont.load_default(max(8, min(drawn.size) // 30))
    for box in reversed(found):  # the best one is drawn last
        colour, corner = colours[box.label], (box.x_min, box.y_min)
        pen.rectangle((*corner, box.x_max, box.y_max), outline=colour, width=width)
        text = f"{box.label} {box.score:.0%}"
        pen.rectangle(pen.textbbox(corner, text, font=font), fill=colour)
        pen.text(corner, text, fill="white", font=font)
    png = io.BytesIO()
    drawn.save(png, "PNG")
    return png.getvalue()


TASK = Task(
    name="detect",
    summary="Find things in images by labels given as text: a box and a score for each.",
    request=DetectRequest,
    response=DetectResponse,
    inputs="images",
    positional=("labels",),
    command=Command(
        examples=(
            'triptych detect photo.jpg --label "a cat" --label "a dog"',
            "triptych detect photo.jpg -l cat -l dog -o boxes.png",
            "triptych detect photo.jpg",
            "triptych detect *.jpg --labels-file labels.txt --threshold 0.3",
        ),
        short={"labels": "l", "top_k": "k"},
        render=render,
        formats={".png": picture},
    ),
    sample={"images": ["{image}"], "labels": ["red circle", "blue square", "green triangle"]},
)
