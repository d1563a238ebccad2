"""Generated sequences: what the engine emits, the codec transfers and tasks read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
        """A slice of the tokens."""
        return TokenChunk(self.token_ids[part], self.log_probs[part], self.top[part])


@dataclass(frozen=True)
class Hypothesis:
    """One finished continuation.

    Attributes:
        token_ids: Generated tokens, the end token included.
        score: Sum of processed log-probabilities over length ** length_penalty.
        finish_reason: One of `inference.generation.FinishReason`.
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

    def written(
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
