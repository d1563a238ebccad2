"""How tokens are chosen and when a sequence ends: resolved at export, overridden per request."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_BEAMS = 16
MAX_TOP_LOG_PROBS = 20
MAX_LOGIT_BIASES = 1024


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
    """Cap on generated tokens, the end token included; the engine lowers it to the positions that
    the model has left."""
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
    min_new_tokens: int = Field(default=0, ge=0)
    """No end token before so many generated ones."""
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0, allow_inf_nan=False)
    """Of prompt and generated tokens alike (Keskar et al. 2019, §4.1)."""
    presence_penalty: float = Field(default=0.0, ge=-10.0, le=10.0, allow_inf_nan=False)
    """Taken once from the logit of each generated token (OpenAI's meaning)."""
    frequency_penalty: float = Field(default=0.0, ge=-10.0, le=10.0, allow_inf_nan=False)
    """Taken from a generated token's logit as often as it was generated."""
    logit_bias: dict[int, float] = Field(default_factory=dict, max_length=MAX_LOGIT_BIASES)
    do_sample: bool = False
    temperature: float = Field(default=1.0, gt=0.0, le=100.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    """0 keeps all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Meister et al. 2022 (arXiv 2202.00666)."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """The same seed, prompt and rules give the same tokens, whoever shares the batch."""
    best_of: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    """Samples to draw, of which the best `num_return_sequences` are returned; None draws just
    as many as are returned."""
    top_log_probs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOG_PROBS)
    """Log-probabilities of the chosen tokens and of so many best ones beside each; None: none.

    They are those that scores sum up: after penalties and bias, at temperature 1, before truncation
    (`top_k` and the like). Banned tokens are not among them; what they had goes to the others in
    sampling and under `renormalize_logits`, otherwise to nobody, as in `transformers`' beams.
    """
    return_alignment: bool = False
    """Tell what each generated token looked at in the source, where the model can."""

    @model_validator(mode="after")
    def _rows_cover_what_is_returned(self) -> Self:
        if self.do_sample and self.num_beams > 1:
            raise ValueError("do_sample and num_beams > 1 exclude each other")
        if self.best_of is not None and not self.do_sample:
            raise ValueError("best_of is for sampling: set do_sample, or use num_beams")
        if self.num_return_sequences > self.rows:
            rows = "best_of" if self.do_sample else "num_beams"
            raise ValueError(
                f"num_return_sequences ({self.num_return_sequences}) "
                f"must not exceed {rows} ({self.rows})"
            )
        return self

    @property
    def rows(self) -> int:
        """Rows that a request takes in the engine: its beams, or its samples."""
        if self.do_sample:
            return self.best_of or self.num_return_sequences
        return self.num_beams

    @property
    def always_banned(self) -> frozenset[int]:
        """Tokens that no step may take; `transformers` never bans an end token as a bad word."""
        words = {word[0] for word in self.bad_words_ids if len(word) == 1}
        return frozenset(words - set(self.eos_token_ids)) | frozenset(self.suppress_tokens)

    def with_overrides(self, overrides: Overrides) -> Self:
        """These rules with what a request asks for laid over them, validated again.

        Who asks for samples leaves the manifest's beams, who asks for beams its sampling.
        """
        given = overrides.model_dump(
            exclude_none=True, exclude={"priority", "deadline_ms", "stream"}
        )
        if given.get("do_sample"):
            given.setdefault("num_beams", 1)
        elif given.get("num_beams", 1) > 1:
            given.setdefault("do_sample", False)
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
    min_new_tokens: int | None = Field(default=None, ge=0)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=10.0, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-10.0, le=10.0, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-10.0, le=10.0, allow_inf_nan=False)
    logit_bias: dict[int, float] | None = Field(default=None, max_length=MAX_LOGIT_BIASES)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, gt=0.0, le=100.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    typical_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    best_of: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    top_log_probs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOG_PROBS)
    return_alignment: bool | None = None
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher goes first; who waits long rises, so that nobody starves."""
    deadline_ms: int | None = Field(default=None, ge=1)
    """Milliseconds from arrival at the engine until the sequence is ended unfinished."""
    stream: bool = False
    """Send tokens as they are chosen (one row only: no beams, no `best_of`); otherwise one response
    at the end."""


class FinishReason:
    """Why a hypothesis ended, as it travels in the `finish_reason` tensor."""

    STOP = "stop"
    LENGTH = "length"
