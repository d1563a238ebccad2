"""`fill-mask`: the most likely tokens in place of the masked ones of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from triptych.messages import (
    Item,
    Message,
    OneOrMany,
    Request,
    Response,
    TruncationParameters,
    as_list,
    cut_characters,
    optional,
)
from triptych.task import Command, Task, separator

MAX_TOP_K = 100
MAX_TARGETS = 100

_Targets = Annotated[list[str], Field(min_length=1, max_length=MAX_TARGETS)]
OneOrManyTargets = Annotated[
    _Targets, BeforeValidator(as_list, json_schema_input_type=str | _Targets)
]


class FillMaskRequest(Request, TruncationParameters):
    """Request of `fill-mask`.

    Each text holds the model's mask token once or several times; `GET /v1/models` lists it as
    `mask_token`. Every masked token is scored by itself, with the other ones masked.
    """

    texts: OneOrMany = Field(description="Texts with the model's mask token.")
    targets: OneOrManyTargets | None = optional(
        "Score these tokens only; each is one token of the model."
    )
    top_k: int = Field(
        default=5, ge=1, le=MAX_TOP_K, description="Number of tokens for each mask, at most."
    )


class MaskToken(Message):
    """One token in place of a mask: its probability, and the text with it."""

    token: str
    token_id: int
    score: float
    text: str


class FilledMasks(Item):
    """The tokens for each mask of one text, in the order of the masks, the best token first."""

    masks: list[list[MaskToken]] | None = None
    truncated_characters: int | None = cut_characters()


class FillMaskResponse(Response[FilledMasks]):
    """Response of `fill-mask`."""


def render(item: FilledMasks, name: str | None) -> Iterator[str]:
    """Score, token and text, one token per line; a blank line between masks."""
    yield from separator(item, name)
    for position, mask in enumerate(item.masks or ()):
        if position:
            yield ""
        for entry in mask:
            yield f"{entry.score:7.2%}  {entry.token.strip():<12}  {entry.text}"


TASK = Task(
    name="fill-mask",
    summary="Fill the masked tokens of texts, the most likely tokens first.",
    request=FillMaskRequest,
    response=FillMaskResponse,
    inputs="texts",
    command=Command(
        examples=(
            'triptych fill-mask "The small [MASK] circle is red."',
            'triptych fill-mask "The circle is [MASK]." --target red --target blue',
            "triptych fill-mask --file masked.txt --output filled.jsonl --top-k 1",
        ),
        short={"top_k": "k", "targets": "t"},
        render=render,
    ),
    sample={"texts": ["{sentence} [MASK]"]},
)
