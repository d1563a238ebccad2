"""Messages that all tasks share, as pydantic models; task messages are in `triptych.tasks`.

One envelope for every task: a request names an optional `model`, the response has `data` in the
order of the request; an item that failed has an `error` in its place. The protobuf twins are
generated from these models (`make proto`).

Parameters, above all of generation, have their name, range and meaning here alone: the engine's
rules (`inference/generation.py`), the command line and the documentation take them from here.

Decision D34.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

MAX_BEAMS = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_LOG_PROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_NEW_TOKENS = 1_000_000
MAX_RANK = 1_000_000
MAX_STRIDE = 4096
MAX_FRAMES = 10_000
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


_CURRENT_NAME = "x-current-name"
"""Key of a field's JSON Schema: the field that it is an earlier name of."""


def as_list(value: object) -> object:
    """One text or image stands for a list of one."""
    return [value] if isinstance(value, str) else value


_Many = Annotated[list[str], Field(min_length=1)]
OneOrMany = Annotated[_Many, BeforeValidator(as_list, json_schema_input_type=str | _Many)]


FrameCounts = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_FRAMES)]],
    Field(description="Number of frames of each item; by default each image is an item."),
]


class Message(BaseModel):
    """Base of all messages. Responses may have fields that an older client does not know."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class ClosedMessage(Message):
    """Base of what clients send: unknown fields are refused by name, unless they ask for nothing.

    Clients also send fields that they do not use. Null, false, `[]` and `{}` are left out, and so
    is a protocol's own default.
    """

    model_config = ConfigDict(extra="forbid")

    defaults: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Values besides null that leave a field out. They replace false, `[]` and `{}`, of which one
    may ask for something."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: given for name, given in value.items() if not cls._is_left_out(name, given)}

    @classmethod
    def _is_left_out(cls, name: str, given: object) -> bool:
        is_known, is_required = _declare(cls).get(name, (False, False))
        if is_required:
            return False
        if given is None:
            return True
        if name in cls.defaults:
            return any(type(one) is type(given) and one == given for one in cls.defaults[name])
        return given in ([], {}) or (given is False and not is_known)


@cache
def _declare(message: type[BaseModel]) -> dict[str, tuple[bool, bool]]:
    """Of each name that a field is given by: that it is known, and whether it is required."""
    return {
        info.alias or name: (True, info.is_required())
        for name, info in message.model_fields.items()
    }


def earlier_name_of(name: str) -> Any:
    """A field that requests may still use for the field `name`, which then has its value."""
    return optional(
        f"Earlier name of `{name}`.", json_schema_extra={"deprecated": True, _CURRENT_NAME: name}
    )


def current_name(info: FieldInfo) -> str | None:
    """The name of the field that this one is an earlier name of; None for others."""
    extra = info.json_schema_extra
    found = extra.get(_CURRENT_NAME) if isinstance(extra, dict) else None
    return found if isinstance(found, str) else None


@cache
def _earlier_names(request: type[Request]) -> tuple[tuple[str, str], ...]:
    """Each earlier name of a field, and the current one."""
    names = {field: current_name(info) for field, info in request.model_fields.items()}
    return tuple((earlier, name) for earlier, name in names.items() if name is not None)


class Request(ClosedMessage):
    """Base of all requests."""

    model: str | None = optional("Model name; optional where exactly one model fits.")

    @model_validator(mode="after")
    def _move_earlier_names(self) -> Self:
        """Each value that was given by an earlier name becomes that of the current one."""
        for earlier, name in _earlier_names(type(self)):
            given = getattr(self, earlier)
            if given is None:
                continue
            if getattr(self, name) not in (None, given):
                raise ValueError(f"{earlier} is an earlier name of {name}: give one of them")
            self.__dict__.update({name: given, earlier: None})
            self.model_fields_set.discard(earlier)
            self.model_fields_set.add(name)
        return self


class StreamRequest(Request):
    """Base of requests whose response may be streamed."""

    stream: bool | None = optional(
        "Send text as server-sent events while it is generated. A model that searches "
        "with beams by default is greedy in a stream; more beams are refused."
    )


class ItemError(Message):
    """Why one item of a batch has no result."""

    type: str = Field(description="Error name, e.g. too_long.")
    message: str
    field: str | None = None


class Item(Message):
    """Base of one result in `data`."""

    index: int = Field(description="Position of the item in the request.")
    error: ItemError | None = None


FINISH_REASON: Any = optional("stop, or length: the limit of tokens cut the output.")


class Usage(Message):
    """Token counts over all items."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


AnyItem = TypeVar("AnyItem", bound=Item)


class Response(Message, Generic[AnyItem]):
    """Envelope of every response."""

    model: str
    data: list[AnyItem]
    usage: Usage = Usage()


class Alternative(Message):
    """One hypothesis of a beam search."""

    text: str
    score: float
    finish_reason: str | None = FINISH_REASON


_BYTES: Any = Field(
    default=[],
    description="What the token adds to the text, in UTF-8; it may be a part of a character. Empty "
    "for special tokens.",
)


class TopToken(Message):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    token_id: int | None = optional("As in `logit_bias`.")
    bytes: list[int] = _BYTES


class TokenLogprob(Message):
    """A generated token, with the most likely tokens at its position where requested."""

    token: str
    logprob: float
    top: list[TopToken] = []
    token_id: int | None = optional("As in `logit_bias`.")
    bytes: list[int] = _BYTES
    text_offset: int | None = optional("Characters of the returned text before the token.")


class PromptLogprob(Message):
    """A token of the prompt, with the most likely tokens at its position where requested."""

    token: str
    logprob: float | None = optional("None for the first token.")
    top: list[TopToken] = []
    token_id: int | None = optional("As in `logit_bias`.")
    bytes: list[int] = _BYTES
    text_offset: int | None = optional("Characters of the returned text before the token.")


class Continuation(Message):
    """One of the outputs for a prompt."""

    text: str
    finish_reason: str
    score: float | None = None
    logprobs: list[TokenLogprob] | None = None
    is_incomplete: bool | None = optional(
        "With choices, regex or json_schema: whether the token limit cut the output."
    )


class Generation(Item):
    """The output for one prompt; with `n`, all of them are `alternatives`, best first."""

    text: str | None = None
    finish_reason: str | None = FINISH_REASON
    score: float | None = None
    logprobs: list[TokenLogprob] | None = None
    is_incomplete: bool | None = optional(
        "With choices, regex or json_schema: whether the token limit cut the output."
    )
    alternatives: list[Continuation] | None = None
    prompt_logprobs: list[PromptLogprob] | None = None


class Chunk(Item):
    """One event of a stream: further text of an item.

    An item's last chunk has a `finish_reason` or an `error`; the stream's last chunk has `usage`.
    """

    text: str = ""
    finish_reason: str | None = FINISH_REASON
    logprobs: list[TokenLogprob] | None = None
    usage: Usage | None = None
    is_greedy: bool | None = optional(
        "In an item's last chunk: true where the most likely token was taken at each "
        "step, in place of the beam search that is the model's default."
    )


class ModelLimits(Message):
    """Limits of a model as this gateway is configured; absent where they do not apply."""

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_client_batch_size: int | None = None
    max_image_pixels: int | None = None
    max_labels: int | None = None
    max_stop_sequences: int | None = None
    max_best_of: int | None = None
    max_top_k: int | None = None
    max_targets: int | None = None
    max_candidates: int | None = None
    max_documents: int | None = None
    max_pair_characters: int | None = None
    max_passages: int | None = None
    max_prompt_images: int | None = None


class TaskInputs(Message):
    """What a model takes for a task."""

    task: str
    fields: list[str]
    """Fields of a request, of which one holds its items, e.g. `texts`, `pairs` or `images`. With
    `prompts`, `images` are those of places in the prompts."""


class Model(Message):
    """One entry of `GET /v1/models`; `id`, `object` and `owned_by` are read by OpenAI's clients."""

    id: str
    object: Literal["model"] = "model"
    owned_by: str = "triptych"
    created: int = 0
    version: int
    """The version that answers."""
    versions: list[int] = []
    """The complete versions in the repository, newest first: what `triptych rollback` can reach."""
    architecture: str
    tasks: list[str]
    inputs: list[TaskInputs] = []
    """What it takes for each of its tasks: a classifier texts and pairs of texts, or images."""
    languages: list[list[str]] = []
    """(source, target) pairs of a translator."""
    language_codes: list[str] = []
    """Of a translator between any two of many languages: their codes, instead of all pairs."""
    precision: str
    default: bool = False
    limits: ModelLimits = ModelLimits()
    mask_token: str | None = None
    """The token that fill-mask replaces."""
    prompts: list[str] = []
    """Names of the prompts of an embedding model."""
    image_place: str | None = None
    """What stands for an image in a prompt of `generate`."""


class RefusedModel(Message):
    """A version of a model that is not served, because it does not load."""

    id: str
    version: int
    reason: str


class ModelList(Message):
    """Response of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]
    refused: list[RefusedModel] = []
    """Versions that do not load where they should be served, such as one that fails its self-check;
    an earlier version may answer."""


class ErrorBody(Message):
    """The `error` of a response when a whole request fails."""

    type: str
    message: str
    field: str | None = None


class ErrorResponse(Message):
    """Body of every response with a status of 400 or more."""

    error: ErrorBody
