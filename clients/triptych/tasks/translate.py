"""`translate`: texts in another language."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from triptych.glossaries.messages import Name, Term
from triptych.messages import (
    FINISH_REASON,
    Alternative,
    BeamParameters,
    Beams,
    Item,
    Message,
    NewTokens,
    OneOrMany,
    Response,
    StreamRequest,
    as_list,
    earlier_name_of,
    optional,
)
from triptych.task import Command, Task

MAX_TERMS = 1000

Glossary = Annotated[dict[Term, Term], Field(max_length=MAX_TERMS)]
CopiedKind = Literal["urls", "emails", "placeholders", "tags"]
_Texts = Annotated[list[Term], Field(max_length=MAX_TERMS)]
_Kinds = list[CopiedKind]
OneOrManyTexts = Annotated[_Texts, BeforeValidator(as_list, json_schema_input_type=str | _Texts)]
OneOrManyKinds = Annotated[
    _Kinds, BeforeValidator(as_list, json_schema_input_type=CopiedKind | _Kinds)
]


class TranslateRequest(StreamRequest, BeamParameters):
    """Request of `translate`."""

    texts: OneOrMany = Field(description="Paragraphs; split into sentences and rejoined.")
    source: str | None = optional("Source language: ISO 639, e.g. es, or the model's own code.")
    target: str | None = optional("Target language: ISO 639, e.g. en, or the model's own code.")
    via: str | None = optional(
        "Language in between: one model translates into it, another from it. Needs `source` and "
        "`target`."
    )
    glossary: Glossary | None = optional("Term of the source to its rendering in the translation.")
    glossary_name: Name | None = optional(
        "A glossary that is stored under this name; the terms of `glossary` count before its own."
    )
    do_not_translate: OneOrManyTexts | None = optional(
        "Texts that are copied as they are: names, codes, placeholders."
    )
    do_not_translate_kinds: OneOrManyKinds | None = optional(
        "Kinds of text that are copied: urls, emails, placeholders, tags."
    )
    divide_long_sentences: bool | None = optional(
        "false: refuse a sentence that is longer than the model takes. By default it is translated "
        "in parts, divided at clauses or spaces."
    )
    n: Beams | None = optional("Number of translations per text, best first.")
    alternatives: Beams | None = earlier_name_of("n")
    max_new_tokens: NewTokens | None = optional(
        "Maximum number of generated tokens of each sentence, the end token included."
    )
    return_attention: bool | None = optional(
        "Return the attention of each token over the source tokens, as `alignment`."
    )
    return_alignment: bool | None = earlier_name_of("return_attention")

    @model_validator(mode="after")
    def _check_via(self) -> Self:
        if self.via is not None:
            if len({self.source, self.target, self.via, None}) < 4:
                raise ValueError("via needs source and target, and is neither of them")
            others = ("model", "stream", "glossary", "glossary_name", "return_attention")
            if given := [name for name in others if getattr(self, name)]:
                raise ValueError(f"{', '.join(given)}: not of two models, leave it out with via")
        return self


class Alignment(Message):
    """Attention over the source: one row of `weights` for each target token."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: list[list[float]] = Field(description="Target tokens x source tokens.")


class Translation(Item):
    """One translated text. `score` is the sum of its sentences' scores.

    Its `finish_reason` is `length` where any of them was cut.
    """

    text: str | None = None
    finish_reason: str | None = FINISH_REASON
    score: float | None = None
    divided_sentences: int | None = optional(
        "Number of sentences longer than the model takes, which were translated in parts."
    )
    alternatives: list[Alternative] | None = None
    alignment: Alignment | None = None


class TranslateResponse(Response[Translation]):
    """Response of `translate`."""


TASK = Task(
    name="translate",
    summary="Translate texts; paragraphs keep their line breaks.",
    request=TranslateRequest,
    response=TranslateResponse,
    inputs="texts",
    not_streamed=(
        "num_beams",
        "n",
        "alternatives",
        "length_penalty",
        "return_attention",
        "return_alignment",
    ),
    command=Command(
        examples=(
            'triptych translate "Hola, mundo." --source es --target en',
            'triptych translate "Hola." --num-beams 4 -n 4',
            'triptych translate "Hola. Adiós." --stream',
            'echo "Hola." | triptych translate -',
            'triptych translate "Hola." -s es -t fr --via en',
            "triptych translate -f spanish.txt -o english.txt -s es -t en",
            'triptych translate "Hola, {name}." --glossary hola=hi --do-not-translate "{name}"',
        ),
        short={"source": "s", "target": "t"},
    ),
    sample={"texts": ["{sentence}"], "source": "es"},
)
