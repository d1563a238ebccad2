"""Requests and responses of `text_generation`, in the form of Text Generation Inference (TGI)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from serving.gateway.dialects.all_or_nothing import ResponseMessage
from serving.gateway.dialects.huggingface.route import Unserved
from triptych.messages import (
    MAX_TOP_LOG_PROBS,
    Beams,
    ClosedMessage,
    JsonSchema,
    NewTokens,
    Penalty,
    Regex,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    optional,
)
from triptych.tasks.generate import OneOrManyStops

Reason = Literal["length", "eos_token", "stop_sequence"]


class RegexGrammar(ClosedMessage):
    """A regular expression that the whole text matches."""

    type: Literal["regex"]
    value: Regex


class JsonGrammar(ClosedMessage):
    """A JSON Schema that the text is valid under."""

    type: Literal["json"]
    value: JsonSchema


class NamedSchema(ClosedMessage):
    """A schema with a name, which is not used."""

    schema_: Annotated[JsonSchema, Field(alias="schema")]
    name: str | None = None


class NamedJsonGrammar(ClosedMessage):
    """A JSON Schema with a name."""

    type: Literal["json_schema"]
    value: NamedSchema


Grammar = RegexGrammar | JsonGrammar | NamedJsonGrammar


class GenerationParameters(ClosedMessage):
    """Parameters of `text_generation`."""

    best_of: Beams | None = None
    details: bool | None = None
    do_sample: bool | None = optional("false: the most likely tokens, whatever else is given.")
    frequency_penalty: Penalty | None = None
    grammar: Annotated[Grammar, Field(discriminator="type")] | None = None
    max_new_tokens: NewTokens | None = None
    repetition_penalty: RepetitionPenalty | None = None
    return_full_text: bool | None = None
    seed: Seed | None = None
    stop: OneOrManyStops | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_n_tokens: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)] | None = None
    top_p: TopP | None = None
    typical_p: TypicalP | None = None
    adapter_id: Unserved = None
    decoder_input_details: Unserved = None
    truncate: Unserved = None
    watermark: Unserved = None


class GenerationBody(ClosedMessage):
    """Body of `POST /hf/generate/{model}`."""

    inputs: str
    parameters: GenerationParameters | None = None
    stream: bool | None = None


class Token(ResponseMessage):
    """A generated token."""

    id: int
    text: str
    logprob: float
    special: bool


class Sequence(ResponseMessage):
    """How a text was generated."""

    finish_reason: Reason
    generated_tokens: int
    seed: int | None
    prefill: list[Token] = []
    """The prompt's tokens, which are not returned."""
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class OtherSequence(Sequence):
    """One of the samples that are not the best."""

    generated_text: str


class Details(Sequence):
    """How the best text was generated."""

    best_of_sequences: list[OtherSequence] | None = None


class Generated(ResponseMessage):
    """The generated text."""

    generated_text: str
    details: Details | None = None


class StreamDetails(ResponseMessage):
    """How a streamed text was generated."""

    finish_reason: Reason
    generated_tokens: int
    input_length: int
    seed: int | None


class StreamEvent(ResponseMessage):
    """One token; the last event also has the whole text."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None = None
    details: StreamDetails | None = None
