"""`tag`: labels of the tokens or words of a text, with their place in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from triptych.messages import Item, Message, OneOrMany, Request, Response
from triptych.parameters import Stride
from triptych.rendering import separator
from triptych.task import Command, Task

Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]


class TagRequest(Request):
    """Request of `tag`.

    `aggregation` joins tokens to entities as the token-classification pipeline of `transformers`:
    `none` labels tokens; `simple` joins adjacent tokens of one entity; `first`, `average` and
    `max` first give each word the label of its first token, of its tokens' average, or of its most
    certain token. A text that is longer than the model takes is refused unless `stride` is given.
    """

    texts: OneOrMany = Field(description="Texts whose tokens are labelled.")
    aggregation: Aggregation = Field(
        default="none", description="none, simple, first, average or max."
    )
    return_outside: bool = Field(
        default=False, description="Return tokens with the label O as well: those of no entity."
    )
    stride: Stride | None = None


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
