"""Parameters of the tasks, above all of generation: each name, range and meaning exactly once.

The messages, the engine's rules (`inference/generation.py`), the command line and the documentation
all take them from here.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, model_validator

MAX_BEAMS = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_LOG_PROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_NEW_TOKENS = 1_000_000
MAX_RANK = 1_000_000
MAX_STRIDE = 4096
MAX_CHOICES = 1000
MAX_CHOICE_CHARACTERS = 1000
MAX_CHOICES_CHARACTERS = 100_000
"""Of all choices together: each is matched with the vocabulary before generation."""
MAX_REGEX_CHARACTERS = 4096
MAX_SCHEMA_CHARACTERS = 65_536

Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0, le=MAX_RANK)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
TypicalP = Annotated[float, Field(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]


def _as_number(key: object) -> object:
    """A key of a JSON object, which is always text."""
    return int(key) if isinstance(key, str) and key.isdecimal() and key.isascii() else key


_Key = Annotated[TokenId, BeforeValidator(_as_number)]
LogitBias = Annotated[dict[_Key, Bias], Field(max_length=MAX_LOGIT_BIASES)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Beams = Annotated[int, Field(ge=1, le=MAX_BEAMS)]
NgramSize = Annotated[int, Field(ge=0, le=MAX_RANK)]
NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)]
TopLogProbs = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]

Choice = Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]
Regex = Annotated[str, Field(min_length=1, max_length=MAX_REGEX_CHARACTERS)]


def _as_text(value: object) -> object:
    """The JSON text of an object."""
    return json.dumps(value) if isinstance(value, dict) else value


JsonSchema = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_SCHEMA_CHARACTERS)],
    BeforeValidator(_as_text, json_schema_input_type=str | dict[str, Any]),
]

Stride = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_STRIDE,
        description="Divide texts that are too long into windows that share this many tokens.",
    ),
]


def optional(description: str, **constraints: Any) -> Any:
    """A field that may be left out."""
    return Field(default=None, description=description, **constraints)


TruncationDirection: TypeAlias = Literal["right", "left"]


class TruncationParameters(BaseModel):
    """Whether texts that are too long are cut, and at which end."""

    truncate: bool = Field(
        default=False,
        description="Cut texts that are longer than the model takes, instead of refusing them; of "
        "a pair, the longer text first.",
    )
    truncation_direction: TruncationDirection = Field(
        default="right",
        description="With `truncate`: the end of a text that is cut off, right or left.",
    )

    @property
    def cut_end(self) -> TruncationDirection | None:
        """The end at which texts are cut; None: they are not."""
        return self.truncation_direction if self.truncate else None


def cut_characters() -> Any:
    """A field of a result: how much of its text was not read."""
    return optional(
        "With `truncate`: how many characters were cut off; absent where none were. Of a pair, "
        "those of both texts.",
        ge=1,
    )


class BeamParameters(BaseModel):
    """Width and scoring of a beam search; names and meanings are those of `transformers`."""

    num_beams: Beams | None = optional("Beam width; the checkpoint's own by default.")
    length_penalty: Penalty | None = optional(
        "Scores of hypotheses are divided by their length to this power."
    )


class StructureParameters(BaseModel):
    """What the whole output matches; at most one of these is given."""

    choices: list[Choice] | None = optional(
        "Texts of which the output is one.", min_length=1, max_length=MAX_CHOICES
    )
    regex: Regex | None = optional(
        "Regular expression that the whole output matches: Rust's syntax without look-around."
    )
    json_schema: JsonSchema | None = optional(
        "JSON Schema, as an object or as text, that the output is valid under."
    )

    @property
    def structure(self) -> str | None:
        """The name of the field that is given, if any."""
        names = ("choices", "regex", "json_schema")
        return next((name for name in names if getattr(self, name) is not None), None)

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        given = [self.choices, self.regex, self.json_schema]
        if sum(one is not None for one in given) > 1:
            raise ValueError("choices, regex and json_schema exclude each other: give one")
        characters = sum(map(len, self.choices or ()))
        if characters > MAX_CHOICES_CHARACTERS:
            raise ValueError(
                f"choices has {characters} characters in all, at most {MAX_CHOICES_CHARACTERS} are "
                "taken: give fewer or shorter ones"
            )
        return self


class GenerationParameters(BeamParameters):
    """How tokens are chosen; names and meanings are those of `transformers` and of OpenAI's API."""

    max_new_tokens: NewTokens | None = optional(
        "Maximum number of generated tokens, the end token included."
    )
    temperature: Temperature | None = optional(
        "Sampling temperature; 0 chooses the most likely token."
    )
    top_k: TopK | None = optional("Sample from this many most likely tokens; 0: from all.")
    top_p: TopP | None = optional("Nucleus sampling: cumulative probability to keep.")
    min_p: MinP | None = optional(
        "Keep tokens with at least this fraction of the most likely one's probability."
    )
    typical_p: TypicalP | None = optional(
        "Locally typical sampling (arXiv 2202.00666): cumulative probability to keep."
    )
    repetition_penalty: RepetitionPenalty | None = optional(
        "Divides the logits of tokens in prompt and output; 1: no penalty."
    )
    presence_penalty: Penalty | None = optional(
        "Subtracted once from the logit of each generated token."
    )
    frequency_penalty: Penalty | None = optional(
        "Subtracted from a token's logit once per occurrence."
    )
    logit_bias: LogitBias | None = optional("Token id to the number added to its logit.")
    seed: Seed | None = optional("Sampling seed; the same seed gives the same tokens.")
    no_repeat_ngram_size: NgramSize | None = optional(
        "No n-gram of this size may repeat; 0: no rule."
    )
    best_of: Beams | None = optional("Number of samples to draw; the best `n` are returned.")


class OutputParameters(GenerationParameters):
    """How tokens are chosen, and how many outputs are returned: tasks that may sample."""

    early_stopping: bool | None = optional(
        "Stop a beam search at its first `num_beams` hypotheses."
    )
    n: Beams | None = optional("Number of outputs per input, best first.")
