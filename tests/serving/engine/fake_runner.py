"""A runner without a model: logits are a function of the source and the row's whole history.

It keeps rows exactly as the protocol says, so that a search which moves state wrongly reads
another row's history and answers differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving.engine.edits import answer
from serving.engine.runner import Ask, Candidates, Prompt
from serving.errors import InvalidRequest

History = tuple[int, ...]
Logits = Callable[[History, History], NDArray[np.float32]]
"""(source ids, decoder ids so far) → (V,) float32."""


def hashed_logits(vocabulary_size: int, end_bias: float = 0.0, end_id: int = 1) -> Logits:
    """Pseudo-random logits, spread widely enough that beams differ."""

    def logits(source: History, history: History) -> NDArray[np.float32]:
        seed = [len(source), *source, len(history), *history]
        values = np.random.default_rng(seed).normal(size=vocabulary_size) * 2
        values[end_id] += end_bias
        return values.astype(np.float32)

    return logits


@dataclass(frozen=True)
class Row:
    source: History
    history: History


class FakeGroup:
    def __init__(self, logits: Logits, width: int) -> None:
        self.width = width
        self.rows: list[Row | None] = []
        self._logits = logits

    def admit(self, prompts: Sequence[Prompt], asks: Sequence[Ask]) -> Candidates:
        admitted = []
        for prompt in prompts:
            source = () if prompt.source_ids is None else tuple(prompt.source_ids.tolist())
            admitted.append(Row(source, tuple(prompt.token_ids.tolist())))
            self.rows += [admitted[-1], *[None] * (self.width - 1)]
        return self._candidates(admitted, asks)

    def step(self, token_ids: NDArray[np.int64], asks: Sequence[Ask]) -> Candidates:
        assert token_ids.shape == (len(self.rows),)
        grown = zip(self.rows, token_ids.tolist(), strict=True)
        self.rows = [row and Row(row.source, (*row.history, token)) for row, token in grown]
        return self._candidates(self.rows, asks)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert not set(sources) & set(targets)
        assert len(set(targets)) == len(targets)
        for source, target in zip(sources, targets, strict=True):
            assert source // self.width == target // self.width
            assert self.rows[source] is not None
            self.rows[target] = self.rows[source]

    def retire(self, slot: int) -> None:
        last = self.rows[len(self.rows) - self.width :]
        self.rows[slot * self.width : (slot + 1) * self.width] = last
        del self.rows[len(self.rows) - self.width :]

    def _candidates(self, rows: Sequence[Row | None], asks: Sequence[Ask]) -> Candidates:
        assert len(asks) == len(rows)
        return answer(np.stack([self._row_logits(row) for row in rows]), asks, rank)

    def _row_logits(self, row: Row | None) -> NDArray[np.float32]:
        """A row without a beam still costs a place in the batch; its numbers mean nothing."""
        if row is None:
            return np.zeros_like(self._logits((), (0,)))
        return self._logits(row.source, row.history)


def rank(
    logits: NDArray[np.float32], k: int, temperatures: NDArray[np.float32] | None
) -> Candidates:
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    below = logits - logits.max(axis=1, keepdims=True)
    log_probs = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    masses = None if temperatures is None else np.exp(below / temperatures).sum(axis=1)
    return Candidates(ids, np.take_along_axis(log_probs, ids, axis=1).astype(np.float32), masses)


@dataclass
class FakeRunner:
    logits: Logits
    vocabulary_size: int
    groups: list[FakeGroup] = field(default_factory=list)
    is_closed: bool = False

    def group(self, width: int) -> FakeGroup:
        self.groups.append(FakeGroup(self.logits, width))
        return self.groups[-1]

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        raise InvalidRequest("this model tells no alignment", field="return_alignment")

    def close(self) -> None:
        self.is_closed = True
