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
DEFAULT_TEMPLATE = "a photo of a {}"


def _as_list(value: object) -> object:
    """One text or picture stands for a list of one."""
    return [value] if isinstance(value, str) else value


OneOrMany = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]


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


class CaptionRequest(_Request):
    """`POST /v1/caption`. As multipart, `images` are files, the other fields stand beside them."""

    images: OneOrMany = Field(description="Base64 or data-URIs.")
    prompt: str | None = Field(default=None, description="Words that the caption begins with.")
    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    alternatives: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    max_new_tokens: int | None = Field(default=None, ge=1, le=4096)


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


class ItemError(_Message):
    """Why one item of a batch has no answer."""

    type: str = Field(description="Wire name, e.g. too_long")
    message: str
    field: str | None = None


class Alternative(_Message):
    """One hypothesis of a beam search."""

    text: str
    score: float


class _Item(_Message):
    index: int
    error: ItemError | None = None


class Translation(_Item):
    """One translated text. `score` is the sum of its sentences' scores."""

    text: str | None = None
    score: float | None = None
    alternatives: list[Alternative] | None = None


class Caption(_Item):
    """One picture's caption."""

    text: str | None = None
    score: float | None = None
    alternatives: list[Alternative] | None = None


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


class ModelLimits(_Message):
    """What a model takes, as this gateway is configured; absent where it does not apply."""

    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_client_batch_size: int | None = None
    max_image_pixels: int | None = None
    max_labels: int | None = None


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
