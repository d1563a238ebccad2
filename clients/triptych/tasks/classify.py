"""`classify`: labels of texts, pairs, images or images with texts, by the model's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from triptych.messages import (
    ClosedMessage,
    Item,
    Message,
    OneOrMany,
    Request,
    Response,
    Stride,
    TruncationParameters,
    cut_characters,
    optional,
)
from triptych.task import Command, Task, separator

DEFAULT_TOP_K = 5
MAX_TOP_K = 1000


class TextPair(ClosedMessage):
    """Two texts that are classified together; in JSON also a list of two."""

    first: str
    second: str


def _as_pair(value: object) -> object:
    """`["a", "b"]` stands for `{"first": "a", "second": "b"}`."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"first": value[0], "second": value[1]}
    if isinstance(value, list | tuple):
        raise ValueError(f"a pair is a list of two texts, this list has {len(value)}")
    return value


_Two = Annotated[list[str], Field(min_length=2, max_length=2)]
Pair = Annotated[TextPair, BeforeValidator(_as_pair, json_schema_input_type=_Two | TextPair)]


class ClassifyRequest(Request, TruncationParameters):
    """Request of `classify`: `texts`, `pairs` or `images`; as multipart, `images` are files.

    A text that is longer than the model takes is refused unless `truncate` or `stride` is given.
    With `stride` the score of a label is the mean of its scores in all windows. A model that reads
    an image with a text takes both: one for all of the others, or one for each.
    """

    texts: OneOrMany | None = optional("Texts to classify, or questions about the images.")
    pairs: list[Pair] | None = optional("Pairs of texts, each a list of two in JSON.", min_length=1)
    images: OneOrMany | None = optional("Base64 or data URIs.")
    top_k: int = Field(
        default=DEFAULT_TOP_K, ge=1, le=MAX_TOP_K, description="Number of labels, at most."
    )
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = optional(
        "softmax, sigmoid or none: how logits become scores; the model's by default."
    )
    stride: Stride | None = None
    return_attention: bool | None = optional("Return which parts of an image the class depends on.")

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> Self:
        given = [name for name in TASK.item_fields if getattr(self, name) is not None]
        if len(given) != 1 and given != [*TASK.together]:
            raise ValueError("give one of texts, pairs and images, or images with texts")
        if self.stride is not None and self.truncate:
            raise ValueError("a text is cut or divided: give either truncate or stride")
        return self


class ClassScore(Message):
    """One of the model's labels."""

    label: str
    score: float


class Classes(Item):
    """The labels of one text, pair or image, or of an image with a text, best first."""

    labels: list[ClassScore] | None = None
    truncated_characters: int | None = cut_characters()
    attention: list[list[float]] | None = optional(
        "Rows of image patches; the weights of all patches sum to 1."
    )


class ClassifyResponse(Response[Classes]):
    """Response of `classify`."""


def render(item: Classes, name: str | None) -> Iterator[str]:
    """Score and label, one pair per line; above them the image's name among several."""
    yield from separator(item, name)
    for entry in item.labels or ():
        yield f"{entry.score:8.4f}  {entry.label}"


TASK = Task(
    name="classify",
    summary="Classify texts, pairs of texts or images by the model's own labels, best first.",
    request=ClassifyRequest,
    response=ClassifyResponse,
    inputs=("texts", "pairs", "images"),
    together=("texts", "images"),
    command=Command(
        examples=(
            'triptych classify "a calm morning by the sea"',
            'triptych classify --pair "It rained all day. => The streets are wet."',
            "triptych classify --images boat.png --top-k 3",
            'triptych classify "How many boats are there?" --images boat.png',
            "triptych classify --file reviews.txt --output labels.jsonl --stride 64",
        ),
        short={"top_k": "k"},
        render=render,
    ),
    sample={"texts": ["{sentence}"]},
)
