"""The tokens of one row, and what is recorded of them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import Candidates, Edit
from inference.engine.search.request import EngineRequest
from inference.generation import Generation
from inference.sequences import Hypothesis

_FIRST_CAPACITY = 64


class TokenHistory:
    """A prompt and the tokens generated after it.

    A token costs the same however many there are; an edit copies one cell for each distinct token.

    Args:
        prompt: The decoder's tokens before the first generated one.

    Attributes:
        token_ids: The prompt, then the generated tokens.
    """

    def __init__(self, rules: Generation, prompt: Sequence[int]) -> None:
        self.token_ids: list[int] = []
        self._rules = rules
        self._ngram_size = rules.no_repeat_ngram_size
        self._has_counts = rules.presence_penalty != 0 or rules.frequency_penalty != 0
        self._penalises = rules.repetition_penalty != 1
        self._followers: dict[tuple[int, ...], frozenset[int]] = {}
        """n - 1 tokens → the tokens that came after them."""
        self._counts: dict[int, int] = {}
        self._cells: dict[int, int] = {}
        """Edited token → its place in the arrays."""
        self._ids = np.empty(_FIRST_CAPACITY, np.int64)
        self._bias, self._factor, self._offset = (
            np.empty(_FIRST_CAPACITY, np.float32) for _ in range(3)
        )
        for token in rules.logit_bias:
            self._cell(token)
        for token in prompt:
            self._append(token)
        self._prompt_length = len(prompt)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return self._prompt_length

    @property
    def generated(self) -> int:
        """Tokens after the prompt."""
        return len(self.token_ids) - self._prompt_length

    def accept(self, token: int) -> None:
        """Adds a generated token."""
        self._append(token)
        if self._has_counts:
            place, rules = self._cell(token), self._rules
            count = self._counts[token] = self._counts.get(token, 0) + 1
            self._offset[place] = -(rules.presence_penalty + rules.frequency_penalty * count)

    def copy(self) -> TokenHistory:
        """A history that grows by itself."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict | np.ndarray):
                setattr(made, name, value.copy())
        return made

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether these are the last tokens; there is at least one."""
        return tuple(self.token_ids[-len(tokens) :]) == tuple(tokens)

    def repeated_ngram_ends(self) -> frozenset[int]:
        """Tokens that would complete an n-gram of `no_repeat_ngram_size` a second time."""
        if not self._ngram_size or len(self.token_ids) < self._ngram_size:
            return frozenset()
        last = tuple(self.token_ids[len(self.token_ids) + 1 - self._ngram_size :])
        return self._followers.get(last, frozenset())

    def edit(self, banned: Collection[int] = ()) -> Edit:
        """Bias, repetition, presence and frequency penalties, then bans, as one edit.

        Of beams they change log-probabilities (`GenerationMixin._beam_search`), else logits.
        """
        count = len(self._cells)
        ids = self._ids[:count].copy()
        bias, factor, offset = (
            array[:count].copy() for array in (self._bias, self._factor, self._offset)
        )
        if banned:
            offset[[self._cells[token] for token in banned if token in self._cells]] = -np.inf
            more = sorted(token for token in banned if token not in self._cells)
            zeros = np.zeros(len(more), np.float32)
            ids = np.concatenate([ids, np.array(more, np.int64)])
            bias, factor = np.concatenate([bias, zeros]), np.concatenate([factor, zeros + 1])
            offset = np.concatenate([offset, zeros - np.float32(np.inf)])
        return Edit(
            ids,
            bias,
            factor,
            offset,
            is_of_log_probs=self._rules.num_beams > 1,
            renormalises=self._rules.renormalize_logits,
        )

    def _append(self, token: int) -> None:
        self.token_ids.append(token)
        if self._penalises:
            place = self._cell(token)
            self._factor[place] = self._rules.repetition_penalty
        size = self._ngram_size
        if size and len(self.token_ids) >= size:
            before = tuple(self.token_ids[-size:-1])
            self._followers[before] = self._followers.get(before, frozenset()) | {token}

    def _cell(self, token: int) -> int:
        """The place of an edited token, which may get one in new arrays."""
        place = self._cells.get(token)
        if place is None:
            place = self._cells[token] = len(self._cells)
            if place == len(self._ids):
                self._ids = _double(self._ids)
                self._bias, self._factor, self._offset = (
                    _double(each) for each in (self._bias, self._factor, self._offset)
                )
            self._ids[place], self._bias[place] = token, self._rules.logit_bias.get(token, 0.0)
            self._factor[place], self._offset[place] = 1, 0
        return place


def _double(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.empty_like(array)])


Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class TokenRecord:
    """What is recorded of one generated token.

    Attributes:
        log_prob: Of the token.
        top: The best tokens of its position, and their log-probabilities.
        emitted: (S,) its EMIT output, if alignments are requested and `step` has one.
    """

    log_prob: float
    top: Top
    emitted: NDArray[np.float32] | None


class TokenTrace:
    """Makes records for a request, and hypotheses of records.

    Attributes:
        is_enabled: Whether the request needs records.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        self._top = rules.top_log_probs
        self._aligns = rules.return_alignment
        self._source = None if request.source_ids is None else len(request.source_ids)
        self.is_enabled = self._top is not None or self._aligns

    @property
    def count(self) -> int:
        """Candidates that a position's best tokens need."""
        return self._top or 0

    def record(
        self,
        ids: Sequence[int],
        log_probs: NDArray[np.float32],
        candidates: Candidates,
        row: int,
        rank: int = 0,
    ) -> TokenRecord:
        """The record of one token; requires `is_enabled`.

        Args:
            ids: The row's allowed candidates, best first; `log_probs` are theirs.
            rank: Index of the token among them.
        """
        best = zip(ids[: self.count], log_probs[: self.count].tolist(), strict=True)
        emitted = None
        if self._aligns and candidates.emitted is not None:
            emitted = candidates.emitted(row)[: self._source].copy()
        return TokenRecord(float(log_probs[rank]), tuple(best), emitted)

    def hypothesis(
        self,
        token_ids: Sequence[int],
        score: float,
        finish_reason: str,
        records: Sequence[TokenRecord],
    ) -> Hypothesis:
        """A finished hypothesis; `records` are those of its tokens, or empty."""
        emitted = [record.emitted for record in records if record.emitted is not None]
        listed = records if self._top is not None else ()
        return Hypothesis(
            tuple(token_ids),
            score,
            finish_reason,
            log_probs=tuple(record.log_prob for record in listed),
            top=tuple(record.top for record in listed),
            alignment=np.stack(emitted) if emitted else None,
        )
