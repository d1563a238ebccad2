"""`segment`: masks of things in images, for labels given as text."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from triptych.errors import TriptychError
from triptych.messages import Item, Message, OneOrMany, Request, Response
from triptych.task import Command, Task

MAX_LABELS = 64
MAX_MASKS = 256
"""Of one request, for all its images."""


class SegmentRequest(Request):
    """Request of `segment`. As multipart, `images` are files, the other fields text."""

    images: OneOrMany = Field(description="Base64 or data URIs.")
    labels: list[str] = Field(
        min_length=1, max_length=MAX_LABELS, description="What to look for, e.g. `a red circle`."
    )


class Mask(Message):
    """Where a label is in an image.

    `mask` is a PNG in base64, `mask_width` by `mask_height` pixels of grey over the whole image:
    0 is a probability of 0, 255 one of 1. `mean_probability` and `max_probability` are over its
    pixels, before they were rounded to levels of grey.
    """

    label: str
    mean_probability: float
    max_probability: float
    mask: str


class Segmentation(Item):
    """The masks of one image, in the order of the labels, their size, and the upright image's."""

    masks: list[Mask] | None = None
    width: int | None = None
    height: int | None = None
    mask_width: int | None = None
    mask_height: int | None = None


class SegmentResponse(Response[Segmentation]):
    """Response of `segment`."""


def render(item: Segmentation, name: str | None) -> Iterator[str]:
    """A label in one line, behind its mean and highest probability; above them the image's name."""
    if name is not None:
        yield name
    for mask in item.masks or ():
        yield f"{mask.mean_probability:7.2%}  {mask.max_probability:7.2%}  {mask.label}"


def picture(items: Sequence[Segmentation], images: Sequence[bytes | Path]) -> bytes:
    """The mask of one label as PNG, at the size of its image.

    Raises:
        TriptychError: several images or labels, or no Pillow to resize with.
    """
    masks = [mask for item in items for mask in item.masks or ()]
    if len(masks) != 1:
        raise TriptychError(f"a PNG holds the mask of one label of one image, not {len(masks)}")
    try:
        from PIL import Image
    except ImportError:
        raise TriptychError("resizing masks needs Pillow: pip install pillow") from None
    width, height = items[0].width, items[0].height
    assert width is not None
    assert height is not None
    png = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(masks[0].mask))) as mask:
        mask.resize((width, height), Image.Resampling.BILINEAR).save(png, "PNG")
    return png.getvalue()


TASK = Task(
    name="segment",
    summary="Find things in images by labels given as text: a mask of probabilities for each.",
    request=SegmentRequest,
    response=SegmentResponse,
    inputs="images",
    command=Command(
        examples=(
            'triptych segment photo.jpg --label "a cat" --label "a dog"',
            "triptych segment photo.jpg -l cat -o mask.png",
        ),
        short={"labels": "l"},
        render=render,
        formats={".png": picture},
    ),
    sample={"images": ["{image}"], "labels": ["red circle", "blue square"]},
)
