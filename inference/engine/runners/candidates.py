"""What the search requests of a runner for each row, and the candidates it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Edit:
    """A sparse change of one row's scores, in the order of `transformers`' processors.

    Each edited score becomes `s = score + bias`, then `s / factor` if positive and `s * factor` if
    negative, then `s + offset`. Rows that share one `Edit` object are edited together.

    Attributes:
        token_ids: (n,) int64, distinct.
        bias: (n,) float32.
        factor: (n,) float32, 1 for tokens without a repetition penalty.
        offset: (n,) float32; minus infinity bans the token.
        is_of_log_probs: Beam search: log-probabilities are edited and not normalised again.
            Otherwise logits are edited and log-probabilities computed from the result.
        renormalises: With `is_of_log_probs`: apply log-softmax after the edit.
    """

    token_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    factor: NDArray[np.float32]
    offset: NDArray[np.float32]
    is_of_log_probs: bool = False
    renormalises: bool = False

    @cached_property
    def only_bans(self) -> bool:
        """Whether all its tokens are banned."""
        return bool((self.offset == -np.inf).all())

    @property
    def only_adds(self) -> bool:
        """Whether it adds to logits, whatever they are."""
        return not self.is_of_log_probs and bool((self.factor == 1).all())


@dataclass(frozen=True, eq=False)
class CandidateRequest:
    """What one row needs of its next token's scores. Compared by identity: share equal ones.

    Attributes:
        count: Candidates; a row may get more, if another row of the call needs them.
        edit: Applied before candidates are ranked.
        temperature: Return the row's probability mass at this temperature.
        given: Distinct tokens whose log-probabilities are returned too, whatever their rank.
    """

    count: int
    edit: Edit | None = None
    temperature: float | None = None
    given: tuple[int, ...] = ()


@lru_cache(maxsize=1024)
def plain_request(count: int) -> CandidateRequest:
    """A request for `count` candidates without an edit; one object for all rows."""
    return CandidateRequest(count)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best next tokens of each row, after its edit.

    Attributes:
        token_ids: (rows, k) int64, highest score first; of equal scores the lowest id first.
        log_probs: (rows, k) float32: log-softmax over the whole vocabulary at temperature 1.
        masses: (rows,) float32: sum over the vocabulary of exp((score - best) / temperature), if
            any row requested it.
        logits: (rows, k) float32: scores of the candidates, where an edit needs them.
        emitted: row → (S,) float32 of the EMIT output that belongs to these candidates, where
            `step` has one. Valid until the runner's next call; copy what is kept.
        more: (row, count) → the row's `count` best, or its whole vocabulary if that is less. Valid
            until the runner's next call.
        given: Row → (n,) log-probabilities of its request's `given` tokens, after its edit.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    masses: NDArray[np.float32] | None = None
    logits: NDArray[np.float32] | None = None
    emitted: Callable[[int], NDArray[np.float32]] | None = None
    more: Callable[[int, int], Candidates] | None = None
    given: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    @cached_property
    def ids(self) -> list[list[int]]:
        """`token_ids` as Python integers, converted once for all rows."""
        return self.token_ids.tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class GreedyRule:
    """What holds for every row at every step of a call of several greedy steps.

    Attributes:
        edit: Applied to the logits; it `only_adds`.
        banned: Tokens that are not chosen; they keep their share of the probability.
    """

    edit: Edit | None = None
    banned: frozenset[int] = frozenset()

    def bias(self, vocabulary_size: int) -> NDArray[np.float32]:
        """(V,) what is added to logits before log-softmax."""
        added = np.zeros(vocabulary_size, np.float32)
        if self.edit is not None:
            added[self.edit.token_ids] = self.edit.bias + self.edit.offset
        return added

    def bans(self, vocabulary_size: int) -> NDArray[np.float32]:
        """(V,) minus infinity for banned tokens, else 0."""
        added = np.zeros(vocabulary_size, np.float32)
        added[list(self.banned)] = -np.inf
        return added


@dataclass(frozen=True, eq=False)
class GreedyTokens:
    """The tokens of several greedy steps.

    Attributes:
        token_ids: (rows, steps) int64.
        log_probs: (rows, steps) float32; minus infinity where every token was banned.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]
