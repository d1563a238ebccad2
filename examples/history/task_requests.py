"""Requests of the measures: many inputs in requests of a bounded size, images as files."""

import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from examples.history.system import Ask

BATCH = 32


def items(ask: Ask, task: str, field: str, values: Sequence[Any], **fields: Any) -> list[Any]:
    """One item for each value, in requests of at most `BATCH`.

    Args:
        field: The field that takes the values, such as "texts".
        fields: The other fields, the same in every request.
    """
    requests = [
        {field: values[start : start + BATCH], **fields} for start in range(0, len(values), BATCH)
    ]
    return [item for request in requests for item in ask(task, request)]


def translations(ask: Ask, texts: list[str]) -> list[str]:
    """Translations by a model of one pair of languages."""
    return [str(item.text) for item in items(ask, "translate", "texts", texts)]


def captions(ask: Ask, images: list[Image.Image]) -> list[str]:
    """Captions of pictures."""
    return [str(item.text) for item in items(ask, "caption", "images", as_pngs(images))]


def text_classes(ask: Ask, texts: list[str]) -> list[str]:
    """The most likely class of each text."""
    return [one.labels[0].label for one in items(ask, "classify", "texts", texts, top_k=1)]


def image_classes(ask: Ask, images: list[Image.Image]) -> list[str]:
    """The most likely class of each picture."""
    pngs = as_pngs(images)
    return [one.labels[0].label for one in items(ask, "classify", "images", pngs, top_k=1)]


def question_about(picture: Image.Image, question: str) -> dict[str, Any]:
    """Fields of `chat` for a question about a picture."""
    message = {"role": "user", "content": f"<image>{question}"}
    return {"messages": [message], "images": as_pngs([picture])}


def as_pngs(images: Sequence[Image.Image]) -> list[bytes]:
    """Images as lossless files."""
    return [as_png(image) for image in images]


def as_png(image: Image.Image) -> bytes:
    """An image as a lossless file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
