"""The wire between gateway and clients, as pydantic models; `triptych.proto` is its twin.

One envelope for every task: asked with an optional `model`, answered with `data` in the order
asked; an item that could not be served holds an `error` in its place.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_LABELS = 1000
MAX_TEMPLATES = 100
MAX_BEAMS = 16
MAX_EXAMPLES = 100
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_LOG_PROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_NEW_TOKENS = 1_000_000
MAX_RANK = 1_000_000
DEFAULT_TEMPLATE = "a photo of a {}"


def _as_list(value: object) -> object:
    """One text or picture stands for a list of one."""
    return [value] if isinstance(value, str) else value


OneOrMany = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_STREAM = "Text as it is generated, as server-sent events; beams cannot stream."
Bias = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]


class _Message(BaseModel):
    """An answer may hold fields that an older client does not know."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Request(_Message):
    """A misspelt field of a request is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, description="May be left out when only one fits.")


class TranslateRequest(_Request):
    """`POST /v1/translate`."""

    texts: OneOrMany = Field(description="Paragraphs; split into sentences and rejoined.")
    source: str | None = Field(default=None, description="ISO 639-1, e.g. es")
    target: str | None = Field(default=None, description="ISO 639-1, e.g. en")
    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    alternatives: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    length_penalty: float | None = Field(default=None, ge=-10, le=10, allow_inf_nan=False)
    return_alignment: bool | None = Field(
        default=None, description="Tell which source tokens each token looked at."
    )
    stream: bool | None = Field(default=None, description=_STREAM)


class CaptionRequest(_Request):
    """`POST /v1/caption`. As multipart, `images` are files, the other fields stand beside them."""

    images: OneOrMany = Field(description="Base64 or data-URIs.")
    prompt: str | None = Field(default=None, description="Words that the caption begins with.")
    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    alternatives: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    max_new_tokens: int | None = Field(default=None, ge=1, le=4096)
    return_attention: bool | None = Field(
        default=None, description="Tell which patches each token looked at."
    )
    stream: bool | None = Field(default=None, description=_STREAM)


class ZeroShotRequest(_Request):
    """`POST /v1/zero-shot`."""

    images: OneOrMany = Field(description="Base64 or data-URIs.")
    labels: list[str] = Field(min_length=1, max_length=MAX_LABELS)
    templates: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TEMPLATES,
        description=f"Each holds {{}}; several are averaged. Default: {DEFAULT_TEMPLATE!r}.",
    )


class Example(_Message):
    """One solved example of a task that the prompts continue."""

    model_config = ConfigDict(extra="forbid")

    input: str
    output: str


class GenerateRequest(_Request):
    """`POST /v1/generate`. Tokens are sampled when a field of sampling is given.

    With `instruction` or `examples` the prompts stand in the few-shot layout, and a line break
    ends the answer; without them a prompt goes in as it is written.
    """

    prompts: OneOrMany = Field(description="Texts to continue.")
    instruction: str | None = Field(default=None, description="What to do, before the examples.")
    examples: list[Example] | None = Field(default=None, max_length=MAX_EXAMPLES)
    max_new_tokens: int | None = Field(default=None, ge=1, le=MAX_NEW_TOKENS)
    temperature: float | None = Field(
        default=None, ge=0, le=100, allow_inf_nan=False, description="0 takes the best token."
    )
    top_k: int | None = Field(default=None, ge=0, le=MAX_RANK, description="0 keeps all.")
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-10, le=10, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-10, le=10, allow_inf_nan=False)
    logit_bias: dict[TokenId, Bias] | None = Field(
        default=None, max_length=MAX_LOGIT_BIASES, description="Token id to what is added."
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Same seed, same answer.")
    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    length_penalty: float | None = Field(default=None, ge=-10, le=10, allow_inf_nan=False)
    early_stopping: bool | None = None
    no_repeat_ngram_size: int | None = Field(default=None, ge=0, le=MAX_RANK)
    n: int | None = Field(default=None, ge=1, le=MAX_BEAMS, description="Answers to a prompt.")
    best_of: int | None = Field(
        default=None, ge=1, le=MAX_BEAMS, description="Samples of which the best n are told."
    )
    stop: Annotated[list[Stop], BeforeValidator(_as_list)] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_STOPS,
        description="One or many texts that end the answer; they are no part of it.",
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_LOG_PROBS,
        description="Log-probabilities of the tokens, and of so many best ones beside each.",
    )
    stream: bool | None = Field(default=None, description=_STREAM)


class ItemError(_Message):
    """Why one item of a batch has no answer."""

    type: str = Field(description="Wire name, e.g. too_long")
    message: str
    field: str | None = None


class Alternative(_Message):
    """One hypothesis of a beam search."""

    text: str
    score: float


class Alignment(_Message):
    """What each token of a translation looked at: a row of `weights` for each target token."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: list[list[float]] = Field(description="Target tokens x source tokens.")


class Attention(_Message):
    """What each token of a caption looked at: a row of `weights` for each token."""

    tokens: list[str]
    grid: list[int] = Field(description="Rows and columns of patches.")
    weights: list[list[float]] = Field(description="Tokens x patches, row by row of the grid.")


class TopToken(_Message):
    """A token that might have been chosen."""

    token: str
    logprob: float


class TokenLogprob(_Message):
    """A generated token, and the best ones at its place, where they were asked for."""

    token: str
    logprob: float
    top: list[TopToken] = []


class Continuation(_Message):
    """One of the answers to a prompt."""

    text: str
    finish_reason: str
    score: float | None = None
    logprobs: list[TokenLogprob] | None = None


class _Item(_Message):
    index: int
    error: ItemError | None = None


class Translation(_Item):
    """One translated text. `score` is the sum of its sentences' scores."""

    text: str | None = None
    score: float | None = None
    alternatives: list[Alternative] | None = None
    alignment: Alignment | None = None


class Caption(_Item):
    """One picture's caption."""

    text: str | None = None
    score: float | None = None
    alternatives: list[Alternative] | None = None
    attention: Attention | None = None


class Generation(_Item):
    """One prompt's answer; with `n`, all of them are `alternatives`, the best first."""

    text: str | None = None
    finish_reason: str | None = Field(default=None, description="stop or length")
    score: float | None = None
    logprobs: list[TokenLogprob] | None = None
    alternatives: list[Continuation] | None = None


class LabelScore(_Message):
    """One label: its probability among the labels asked, and its cosine with the picture."""

    label: str
    score: float
    cosine: float


class Classification(_Item):
    """One picture's labels, best first."""

    labels: list[LabelScore] | None = None


class Usage(_Message):
    """Tokens in and out, over all items."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


Item = TypeVar("Item", bound=_Item)


class Response(_Message, Generic[Item]):
    """The one envelope."""

    model: str
    data: list[Item]
    usage: Usage = Usage()


class TranslateResponse(Response[Translation]):
    """Answer of `/v1/translate`."""


class CaptionResponse(Response[Caption]):
    """Answer of `/v1/caption`."""


class ZeroShotResponse(Response[Classification]):
    """Answer of `/v1/zero-shot`."""


class GenerateResponse(Response[Generation]):
    """Answer of `/v1/generate`."""


class Piece(_Item):
    """One event of a stream: more text of an item.

    An item's last piece has a `finish_reason` or an `error`; the stream's last one has `usage`.
    """

    text: str = ""
    finish_reason: str | None = Field(default=None, description="stop or length")
    logprobs: list[TokenLogprob] | None = None
    usage: Usage | None = None


class ModelLimits(_Message):
    """What a model takes, as this gateway is configured; absent where it does not apply."""

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_client_batch_size: int | None = None
    max_image_pixels: int | None = None
    max_labels: int | None = None
    max_stop_sequences: int | None = None
    max_best_of: int | None = None


class Model(_Message):
    """One line of `GET /v1/models`; `id`, `object`, `owned_by` are what OpenAI's clients read."""

    id: str
    object: Literal["model"] = "model"
    owned_by: str = "triptych"
    created: int = 0
    version: int
    architecture: str
    tasks: list[str]
    languages: list[list[str]] = []
    precision: str
    default: bool = False
    limits: ModelLimits = ModelLimits()


class ModelList(_Message):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


class ErrorBody(_Message):
    """What `error` holds when a whole request fails."""

    type: str
    message: str
    field: str | None = None


class ErrorResponse(_Message):
    """Body of every answer with a status of 400 or more."""

    error: ErrorBody
