"""What the search requests of a runner for each row, and the candidates that follow.

Runners rank in different ways and share the rest. An edit touches only its own cells: nothing as
wide as the vocabulary is allocated or copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

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
    """The tokens of several greedy steps; `steps` is how many were taken.

    Attributes:
        token_ids: (rows, steps) int64.
        log_probs: (rows, steps) float32; minus infinity where every token was banned.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


Floats = NDArray[np.float32]
Rank = Callable[[Floats, int, "Floats | None"], Candidates]
"""(rows, V) logits, k <= V, (rows, 1) temperatures → the k best, with masses if temperatures."""


@dataclass(frozen=True)
class CellEdits:
    """Edits of n cells of (rows, V) logits, flattened; see `Edit` for the arithmetic."""

    rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    bias: Floats
    factor: Floats
    offset: Floats


class Logits(Protocol):
    """(rows, V) float32 scores of a call, on any device."""

    vocabulary_size: int

    def edit(self, cells: CellEdits) -> Floats:
        """Edits cells in place; returns their scores before, (n,)."""

    def rank(
        self, count: int, temperatures: Floats | None = None, *, with_logits: bool = False
    ) -> Candidates:
        """The `count` best tokens of each row; `temperatures` is (rows, 1)."""

    def row(self, index: int) -> Logits:
        """One row, (1, V); shares memory."""


class HostLogits:
    """Logits in a numpy array.

    Args:
        values: (rows, V) float32, contiguous; edited in place.
        rank: Ranks rows of such an array.
    """

    def __init__(self, values: Floats, rank: Rank) -> None:
        self.vocabulary_size = values.shape[1]
        self._values, self._rank = values, rank

    def edit(self, cells: CellEdits) -> Floats:
        places = cells.rows, cells.token_ids
        raw: Floats = self._values[places]
        self._values[places] = _apply_edit(raw, cells.bias, cells.factor, cells.offset)
        return raw

    def rank(
        self, count: int, temperatures: Floats | None = None, *, with_logits: bool = False
    ) -> Candidates:
        found = self._rank(self._values, count, temperatures)
        if with_logits:
            found = replace(found, logits=np.take_along_axis(self._values, found.token_ids, 1))
        return found

    def row(self, index: int) -> HostLogits:
        return HostLogits(self._values[index : index + 1], self._rank)


def select_candidates(
    logits: Logits,
    row_requests: Sequence[CandidateRequest],
    emitted: Callable[[int], Floats] | None = None,
) -> Candidates:
    """Candidates of each row after its own edit.

    Args:
        logits: Edited in place, and read again by `Candidates.more`.
        row_requests: One per row.
        emitted: See `Candidates.emitted`.
    """
    kinds = set(row_requests)  # by identity, so plain rows cost nothing each
    size = logits.vocabulary_size
    count = min(max(kind.count for kind in kinds), size)
    folds = _edit(logits, row_requests) if any(kind.edit is not None for kind in kinds) else []
    reads = _read(logits, row_requests) if any(kind.given for kind in kinds) else []
    temperatures = None
    if any(kind.temperature is not None for kind in kinds):
        temperatures = np.array([[each.temperature or 1.0] for each in row_requests], np.float32)
    found = logits.rank(count, temperatures, with_logits=bool(folds or reads))
    given = {one.row: one.log_probs(found) for one in reads}
    raw = {one.row: one for one in reads}
    for fold in folds:
        folded = fold.into(found)
        if fold.row in given:
            given[fold.row] = folded.log_probs(raw[fold.row])

    def more(row: int, count: int) -> Candidates:
        return logits.row(row).rank(min(count, size))

    return Candidates(found.token_ids, found.log_probs, found.masses, None, emitted, more, given)


@dataclass(frozen=True)
class _Read:
    """Tokens of a row whose log-probabilities are returned whatever their rank.

    Attributes:
        raw: (n,) their logits, after the row's edit of logits.
    """

    row: int
    token_ids: tuple[int, ...]
    raw: Floats

    def log_probs(self, found: Candidates) -> Floats:
        """(n,) normalised as the row's ranking is."""
        assert found.logits is not None
        best, log_prob = found.logits[self.row, 0], found.log_probs[self.row, 0]
        return (
            self.raw - (best - log_prob) if log_prob > -np.inf else _minus_infinity(len(self.raw))
        )


@dataclass(frozen=True)
class _EditedLogProbs:
    """Log-probabilities of a row after an edit of them.

    Attributes:
        edited: (n,) of the edited tokens.
        shift: What is subtracted from the logits of the others.
    """

    edit: Edit
    edited: Floats
    shift: np.floating[Any]

    def log_probs(self, read: _Read) -> Floats:
        """(n,) of the tokens of a read."""
        edited = dict(zip(self.edit.token_ids.tolist(), self.edited.tolist(), strict=True))
        others = (read.raw - self.shift).tolist()
        pairs = zip(read.token_ids, others, strict=True)
        return np.array([edited.get(token, other) for token, other in pairs], np.float32)


@dataclass(frozen=True)
class _LogProbEdit:
    """A row whose log-probabilities are edited: its edited tokens are left out of the ranking.

    Attributes:
        raw: (n,) logits of the edited tokens; the ranking sees minus infinity instead.
    """

    row: int
    edit: Edit
    raw: Floats

    def into(self, found: Candidates) -> _EditedLogProbs:
        """Merges the edited tokens into the row's ranking, with the scores of `transformers`.

        Log-probabilities of the ranking lack the edited tokens' mass: the exact normaliser is the
        logarithm of both masses added.
        """
        assert found.logits is not None
        edit, ids, rest = self.edit, found.token_ids[self.row], found.logits[self.row]
        rest_mass = rest[0] - found.log_probs[self.row, 0] if rest[0] > -np.inf else rest[0]
        mass = np.logaddexp(rest_mass, _log_sum_exp(self.raw))
        shift = mass
        edited = _apply_edit(self.raw - mass, edit.bias, edit.factor, edit.offset)
        others = rest - mass
        if edit.renormalises:
            total = np.logaddexp(rest_mass - mass, _log_sum_exp(edited))
            edited, others, shift = edited - total, others - total, mass + total
        stands = rest > -np.inf  # the rest is edited, or banned for good
        all_ids = np.concatenate([ids[stands], edit.token_ids])
        scores = np.concatenate([others[stands], edited]).astype(np.float32)
        order = np.lexsort((all_ids, -scores))[: len(ids)]
        found.token_ids[self.row, : len(order)] = all_ids[order]
        found.log_probs[self.row] = -np.inf
        found.log_probs[self.row, : len(order)] = scores[order]
        return _EditedLogProbs(edit, edited, shift)


def _read(logits: Logits, row_requests: Sequence[CandidateRequest]) -> list[_Read]:
    """The given tokens of rows, read by an edit that changes nothing."""
    given = [(row, request.given) for row, request in enumerate(row_requests) if request.given]
    rows = [row for row, tokens in given for _ in tokens]
    cells = [token for _, tokens in given for token in tokens]
    zeros = np.zeros(len(rows), np.float32)
    raw = logits.edit(CellEdits(np.array(rows), np.array(cells), zeros, zeros + 1, zeros))
    ends = np.cumsum([len(tokens) for _, tokens in given])
    return [
        _Read(row, tokens, part)
        for (row, tokens), part in zip(given, np.split(raw, ends[:-1]), strict=True)
    ]


def _edit(logits: Logits, row_requests: Sequence[CandidateRequest]) -> list[_LogProbEdit]:
    """Edits logits in place. Edits of log-probabilities need the ranking first: returned as folds.

    The cells of a fold get minus infinity, so that the ranking leaves them out.
    """
    rows_of: dict[Edit, list[int]] = {}
    for row, request in enumerate(row_requests):
        if request.edit is not None:
            rows_of.setdefault(request.edit, []).append(row)
    raw = logits.edit(_flatten_edits(rows_of))
    folds, start = [], 0
    for edit, rows in rows_of.items():
        size = len(edit.token_ids)
        if edit.is_of_log_probs:
            parts = raw[start : start + len(rows) * size].reshape(len(rows), size)
            folds += [_LogProbEdit(row, edit, part) for row, part in zip(rows, parts, strict=True)]
        start += len(rows) * size
    return folds


def _flatten_edits(rows_of: dict[Edit, list[int]]) -> CellEdits:
    """One cell for each row and token of each edit, rows in order within an edit."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for edit, rows in rows_of.items():
        count, factors = len(edit.token_ids), (edit.bias, edit.factor, edit.offset)
        if edit.is_of_log_probs:
            factors = (np.zeros_like(edit.bias), np.ones_like(edit.factor), _minus_infinity(count))
        if len(rows) == 1:
            columns.append((np.full(count, rows[0]), edit.token_ids, *factors))
            continue
        token_ids, *repeated = (np.tile(each, len(rows)) for each in (edit.token_ids, *factors))
        columns.append((np.repeat(np.array(rows), count), token_ids, *repeated))
    if len(columns) == 1:
        return CellEdits(*columns[0])
    return CellEdits(*map(np.concatenate, zip(*columns, strict=True)))


def _minus_infinity(count: int) -> Floats:
    return np.full(count, -np.inf, np.float32)


def _apply_edit(scores: Floats, bias: Floats, factor: Floats, offset: Floats) -> Floats:
    """Scores after an edit, (n,) float32."""
    biased = scores + bias
    edited: Floats = np.where(biased < 0, biased * factor, biased / factor) + offset
    return edited


def _log_sum_exp(values: Floats) -> np.float64:
    return np.float64(np.logaddexp.reduce(values.astype(np.float64)))
