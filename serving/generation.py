"""How tokens are chosen and when a sequence ends: resolved at export, overridden per request."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_BEAMS = 16


class Generation(BaseModel):
    """One request's rules, complete. Names and meanings are those of `transformers`.

    The manifest holds a checkpoint's defaults (from `generation_config.json`, else from the
    generation keys of `config.json`); a request's `Overrides` are laid over them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decoder_start_ids: tuple[int, ...] = ()
    """Tokens every decoder starts from (encoder-decoders); empty for decoder-only models."""
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int
    max_new_tokens: int = Field(ge=1)
    """Cap on generated tokens, the end token included; never beyond the model's positions."""
    num_beams: int = Field(default=1, ge=1, le=MAX_BEAMS)
    num_return_sequences: int = Field(default=1, ge=1, le=MAX_BEAMS)
    length_penalty: float = Field(default=1.0, ge=-10.0, le=10.0, allow_inf_nan=False)
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    renormalize_logits: bool = False
    """Log-probabilities are taken over the tokens that `always_banned` leaves."""
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None

    @model_validator(mode="after")
    def _beams_cover_what_is_returned(self) -> Self:
        if self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences ({self.num_return_sequences}) "
                f"must not exceed num_beams ({self.num_beams})"
            )
        return self

    @property
    def always_banned(self) -> frozenset[int]:
        """Tokens that no step may take; `transformers` never bans an end token as a bad word."""
        words = {word[0] for word in self.bad_words_ids if len(word) == 1}
        return frozenset(words - set(self.eos_token_ids)) | frozenset(self.suppress_tokens)

    def with_overrides(self, overrides: Overrides) -> Self:
        """These rules with what a request asks for laid over them, validated again.

        `max_new_tokens` can only shrink: the manifest's value is what the model can hold.
        """
        given = overrides.model_dump(exclude_none=True, exclude={"deadline_ms", "stream"})
        if "max_new_tokens" in given:
            given["max_new_tokens"] = min(given["max_new_tokens"], self.max_new_tokens)
        merged = {**self.model_dump(), **given}
        return type(self).model_validate(merged)


class Overrides(BaseModel):
    """What one request may change; travels to the engine as JSON in the `options` tensor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    num_return_sequences: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    max_new_tokens: int | None = Field(default=None, ge=1)
    length_penalty: float | None = Field(default=None, ge=-10.0, le=10.0, allow_inf_nan=False)
    early_stopping: bool | Literal["never"] | None = None
    deadline_ms: int | None = Field(default=None, ge=1)
    """Milliseconds from arrival at the engine until the sequence is ended unfinished."""
    stream: bool = False
    """Send tokens as they are chosen (one beam only); otherwise one response at the end."""


class FinishReason:
    """Why a hypothesis ended, as it travels in the `finish_reason` tensor."""

    STOP = "stop"
    LENGTH = "length"
