"""`tag`: labels of the tokens or words of a text, with their place in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from triptych.messages import (
    Item,
    Message,
    OneOrMany,
    Request,
    Response,
    Stride,
    TruncationParameters,
    cut_characters,
)
from triptych.task import Command, Task, separator

Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]


class TagRequest(Request, TruncationParameters):
    """Request of `tag`.

    `aggregation` joins tokens to entities as the token-classification pipeline of `transformers`:
    `none` labels tokens; `simple` joins adjacent tokens of one entity; `first`, `average` and
    `max` first give each word the label of its first token, of its tokens' average, or of its most
    certain token. A text that is longer than the model takes is refused unless `truncate` or
    `stride` is given.
    """

    texts: OneOrMany = Field(description="Texts whose tokens are labelled.")
    aggregation: Aggregation = Field(
        default="none", description="none, simple, first, average or max."
    )
    return_outside: bool = Field(
        default=False, description="Return tokens with the label O as well: those of no entity."
    )
    stride: Stride | None = None

    @model_validator(mode="after")
    def _cut_or_divided(self) -> Self:
        if self.stride is not None and self.truncate:
            raise ValueError("a text is cut or divided: give either truncate or stride")
        return self


class TaggedToken(Message):
    """A token or an entity: characters `start` to `end` (excluded) of its text."""

    text: str
    start: int
    end: int
    label: str
    score: float


class Tags(Item):
    """The labelled tokens of one text, in their order; empty where nothing was found."""

    tokens: list[TaggedToken] = []
    truncated_characters: int | None = cut_characters()


class TagResponse(Response[Tags]):
    """Response of `tag`."""


def render(item: Tags, name: str | None) -> Iterator[str]:
    """Place, score, label and text, one token per line."""
    yield from separator(item, name)
    for token in item.tokens:
        place = f"{token.start}-{token.end}"
        yield f"{place:>9}  {token.score:7.2%}  {token.label:<8}  {token.text}"


TASK = Task(
    name="tag",
    summary="Label the tokens of texts: names, parts of speech and the like.",
    request=TagRequest,
    response=TagResponse,
    inputs="texts",
    command=Command(
        examples=(
            'triptych tag "Ada Lovelace was born in London."',
            'triptych tag "Ada Lovelace was born in London." --aggregation simple',
            "triptych tag --file pages.txt --output tags.jsonl --aggregation first --stride 64",
        ),
        short={"aggregation": "a"},
        render=render,
    ),
    sample={"texts": ["{sentence}"], "aggregation": "simple"},
)
