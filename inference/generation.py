"""How tokens are chosen and when a sequence ends, and the sequences that come of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from triptych.messages import (
    MAX_NEW_TOKENS,
    Beams,
    Choice,
    GenerationParameters,
    JsonSchema,
    LogitBias,
    MinP,
    NgramSize,
    Penalty,
    Regex,
    RepetitionPenalty,
    Seed,
    StructureParameters,
    Temperature,
    TokenId,
    TopK,
    TopLogProbs,
    TopP,
    TypicalP,
    optional,
)

MAX_PHRASES = 64
MAX_SPELLINGS = 16
MAX_SPELLING_TOKENS = 256

_Spelling = Annotated[tuple[TokenId, ...], Field(min_length=1, max_length=MAX_SPELLING_TOKENS)]
_Spellings = Annotated[tuple[_Spelling, ...], Field(min_length=1, max_length=MAX_SPELLINGS)]
Phrases = tuple[_Spellings, ...]


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
    num_beams: Beams = 1
    num_return_sequences: Beams = 1
    length_penalty: Penalty = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: NgramSize = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    renormalize_logits: bool = False
    """Log-probabilities are normalised over the tokens that are not `always_banned`."""
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    min_new_tokens: int = Field(default=0, ge=0)
    """No end token before this many generated tokens."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Applies to prompt and generated tokens (Keskar et al. 2019, §4.1)."""
    presence_penalty: Penalty = 0.0
    """Subtracted once from the logit of each generated token, as in OpenAI's API."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a generated token's logit once per occurrence."""
    logit_bias: LogitBias = Field(default_factory=dict)
    do_sample: bool = False
    temperature: Annotated[Temperature, Field(gt=0)] = 1.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    typical_p: TypicalP = 1.0
    """Meister et al. 2022 (arXiv 2202.00666)."""
    seed: Seed | None = None
    """Equal seed, prompt and parameters give equal tokens, in any batch."""
    best_of: Beams | None = None
    """Samples to draw, of which the best `num_return_sequences` are returned; None: no more than
    are returned."""
    top_log_probs: TopLogProbs | None = None
    """Return log-probabilities of the chosen tokens and of this many most likely ones; None: none.

    They are the terms of the scores: after penalties and bias, at temperature 1, before truncation
    (`top_k` and the like). Banned tokens are left out; the others are renormalised in sampling and
    under `renormalize_logits`, but not otherwise, as in `transformers`' beams.
    """
    return_alignment: bool = False
    """Return the attention of each generated token over the source, where the model has it."""
    given_ids: tuple[int, ...] = ()
    """Tokens to take in place of chosen ones, with their log-probabilities before any rule; the
    sequence ends with the last of them."""
    generated_ids: tuple[int, ...] = ()
    """Tokens that were generated before the sequence was lost: it goes on behind them, as if it had
    never been lost, and returns the tokens behind them alone. Its score is theirs."""
    choices: tuple[Choice, ...] | None = None
    regex: Regex | None = None
    json_schema: JsonSchema | None = None
    allows_space: bool = False
    """One space may stand in front of what matches `choices`, `regex` or `json_schema`."""
    force_words_ids: Phrases = ()
    """Phrases that every hypothesis contains, each as spellings of which it contains one (Post &
    Vilar 2018); beams only. A phrase begins and ends at the edges of words."""

    @model_validator(mode="after")
    def _rows_cover_what_is_returned(self) -> Self:
        if self.do_sample and self.num_beams > 1:
            raise ValueError("do_sample and num_beams > 1 are mutually exclusive")
        if self.best_of is not None and not self.do_sample:
            raise ValueError("best_of requires sampling: set do_sample, or use num_beams")
        if self.num_return_sequences > self.rows:
            rows = "best_of" if self.do_sample else "num_beams"
            raise ValueError(
                f"num_return_sequences ({self.num_return_sequences}) "
                f"must not exceed {rows} ({self.rows})"
            )
        if self.force_words_ids and (self.num_beams == 1 or self.do_sample):
            raise ValueError("force_words_ids need beams: set num_beams to at least 2")
        if self.has_structure and (self.num_beams > 1 or self.given_ids):
            raise ValueError("choices, regex and json_schema exclude beams: set num_beams to 1")
        if self.given_ids and self.rows > 1:
            raise ValueError(f"given_ids are one sequence, not {self.rows}: no beams, no samples")
        if self.generated_ids and (self.rows > 1 or self.given_ids or self.return_alignment):
            raise ValueError("generated_ids exclude beams, several samples, given_ids, alignments")
        return self

    @property
    def rows(self) -> int:
        """Rows that a request takes in the engine: its beams, or its samples."""
        if self.do_sample:
            return self.best_of or self.num_return_sequences
        return self.num_beams

    @property
    def has_structure(self) -> bool:
        """Whether the output matches choices, an expression or a schema."""
        return any(one is not None for one in (self.choices, self.regex, self.json_schema))

    @property
    def always_banned(self) -> frozenset[int]:
        """Tokens that no step may take; `transformers` never bans an end token as a bad word."""
        words = {word[0] for word in self.bad_words_ids if len(word) == 1}
        return frozenset(words - set(self.eos_token_ids)) | frozenset(self.suppress_tokens)

    def with_overrides(self, overrides: Overrides) -> Self:
        """These rules with a request's overrides, validated again.

        A request for sampling disables the manifest's beams, one for beams its sampling.
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


class Overrides(StructureParameters, GenerationParameters):
    """What one request may change; sent to the engine as JSON in the tensor `options`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_return_sequences: Beams | None = optional("Number of hypotheses to return.")
    early_stopping: bool | Literal["never"] | None = optional(
        "As in `transformers`: true, false or `never`."
    )
    min_new_tokens: int | None = optional("No end token before this many generated tokens.", ge=0)
    forced_bos_token_id: int | None = optional("The token that the output begins with.", ge=0)
    do_sample: bool | None = optional("Sample instead of beam search.")
    top_log_probs: TopLogProbs | None = optional(
        "Return log-probabilities, and this many most likely tokens."
    )
    return_alignment: bool | None = optional(
        "Return attention over the source, where the model has it."
    )
    given_ids: tuple[TokenId, ...] | None = optional(
        "Take these tokens and return their log-probabilities; chooses none.",
        min_length=1,
        max_length=MAX_NEW_TOKENS,
    )
    generated_ids: tuple[TokenId, ...] | None = optional(
        "Go on behind these tokens, which were generated before the sequence was lost.",
        min_length=1,
        max_length=MAX_NEW_TOKENS,
    )
    allows_space: bool | None = optional("One space may stand in front of what matches.")
    force_words_ids: Phrases | None = optional(
        "Phrases that the output contains, each as its possible spellings.",
        min_length=1,
        max_length=MAX_PHRASES,
    )
    priority: int = Field(
        default=0,
        ge=-100,
        le=100,
        description="Higher starts sooner: a head start in the queue, one second per step.",
    )
    deadline_ms: int | None = optional(
        "Milliseconds from arrival at the engine until the sequence is aborted.", ge=1
    )
    stream: bool = Field(
        default=False,
        description="Send tokens as they are chosen (one row only: no beams, no `best_of`).",
    )


class FinishReason:
    """Why a hypothesis ended, as in the tensor `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"

    @classmethod
    def of_all(cls, reasons: Iterable[str]) -> str:
        """That of an answer in parts: `length` where any of them was cut."""
        return next((reason for reason in reasons if reason != cls.STOP), cls.STOP)


Top: TypeAlias = tuple[tuple[int, float], ...]
"""The most likely tokens at one position and their log-probabilities, best first."""


@dataclass(frozen=True)
class TokenChunk:
    """Tokens of one sequence that were generated, or arrived, together.

    `log_probs` and `top` have an entry for each token, or are empty if not requested. Behind the
    last tokens of a sequence (`is_last`) comes its result alone.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    top: tuple[Top, ...] = ()
    is_last: bool = field(default=False, compare=False)

    def __getitem__(self, part: slice) -> TokenChunk:
        return TokenChunk(self.token_ids[part], self.log_probs[part], self.top[part])


@dataclass(frozen=True)
class Hypothesis:
    """One finished continuation.

    Attributes:
        token_ids: Generated tokens, the end token included.
        score: Sum of processed log-probabilities over length ** length_penalty.
        finish_reason: One of `FinishReason`.
        log_probs: Of the tokens, if requested.
        top: Per position the best tokens and their log-probabilities, if requested.
        alignment: (tokens, S) float32: attention of each to the source, if requested.
        text: As a task writes it.
        pieces: Its tokens as text, those of terms that were placed included.
    """

    token_ids: tuple[int, ...]
    score: float
    finish_reason: str
    log_probs: tuple[float, ...] = ()
    top: tuple[Top, ...] = ()
    alignment: NDArray[np.float32] | None = None
    text: str = ""
    pieces: tuple[str, ...] = ()

    @property
    def tokens(self) -> TokenChunk:
        """Its tokens without the rest."""
        return TokenChunk(self.token_ids, self.log_probs, self.top)


@dataclass(frozen=True)
class Finished:
    """The whole result of one request, best hypothesis first; samples in the order drawn."""

    hypotheses: tuple[Hypothesis, ...]
    prompt_tokens: int

    @property
    def best(self) -> Hypothesis:
        """The first hypothesis."""
        return self.hypotheses[0]

    @property
    def generated_tokens(self) -> int:
        """Tokens over all hypotheses."""
        return sum(len(hypothesis.token_ids) for hypothesis in self.hypotheses)

    def with_texts(
        self, texts: Sequence[str], pieces: Iterable[str], weights: NDArray[Any] | None
    ) -> Finished:
        """The same with the texts of its hypotheses.

        Args:
            pieces: Of the best.
            weights: (pieces, S or more) their attention, if there is one.
        """
        each = zip(self.hypotheses, texts, strict=True)
        best, *others = (replace(one, text=text) for one, text in each)
        best = replace(best, pieces=tuple(pieces), alignment=weights)
        return replace(self, hypotheses=(best, *others))

    def by_score(self) -> Finished:
        """The same with its hypotheses in the order of their scores."""
        ordered = sorted(self.hypotheses, key=lambda one: one.score, reverse=True)
        return replace(self, hypotheses=tuple(ordered))


def concatenate(chunks: Iterable[TokenChunk]) -> TokenChunk:
    """Consecutive chunks as one."""
    found = list(chunks)
    return TokenChunk(
        token_ids=tuple(token for chunk in found for token in chunk.token_ids),
        log_probs=tuple(value for chunk in found for value in chunk.log_probs),
        top=tuple(top for chunk in found for top in chunk.top),
    )
