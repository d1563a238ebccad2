"""A runner without a model: logits are a function of the source and the row's whole history.

It keeps rows exactly as the protocol requires, so that a search that moves state wrongly reads
another row's history and returns other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    GreedyRule,
    GreedyTokens,
)
from inference.engine.runners.edits import HostLogits, select_candidates
from inference.engine.runners.prompt import Prompt
from inference.engine.runners.protocol import Group, Prefill, Runner
from inference.engine.state.memory_model import BufferShape, MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix
from inference.errors import InvalidRequest

GREEDY_STEPS = 4
History = tuple[int, ...]
Logits = Callable[[History, History], NDArray[np.float32]]
"""(source ids, decoder ids so far) → (V,) float32."""


def hashed_logits(vocabulary_size: int, end_bias: float = 0.0) -> Logits:
    """Pseudo-random logits, spread widely enough that beams differ."""

    @lru_cache(maxsize=100_000)
    def logits(source: History, history: History) -> NDArray[np.float32]:
        seed = [len(source), *source, len(history), *history]
        values = np.random.default_rng(seed).normal(size=vocabulary_size) * 2
        values[1] += end_bias
        return values.astype(np.float32)

    return logits


@dataclass(frozen=True)
class Row:
    source: History
    history: History


@dataclass(frozen=True)
class FakeBlock:
    """Tokens of a history, as if they were their state; a byte a token."""

    tokens: History

    @property
    def nbytes(self) -> int:
        return len(self.tokens)

    def release(self) -> None:
        pass


class FakePrefill(Prefill):
    """A prompt of which some tokens have been read."""

    def __init__(self, prompt: Prompt, cached: CachedPrefix[Block]) -> None:
        self.source = () if prompt.source_ids is None else tuple(prompt.source_ids.tolist())
        self.history: History = ()
        self._prompt = tuple(prompt.token_ids.tolist())
        for block in cached.blocks:
            assert isinstance(block, FakeBlock)
            self.history += block.tokens[: cached.tokens - len(self.history)]
        assert len(self.history) == cached.tokens
        assert self.remaining_tokens >= 1

    @property
    def remaining_tokens(self) -> int:
        return len(self._prompt) - len(self.history)

    def release(self) -> None:
        self.history = ()

    @property
    def state_bytes(self) -> int:
        return BufferShape.holding(1, len(self._prompt), 0).positions

    def read(self, count: int) -> None:
        assert 1 <= count < self.remaining_tokens
        self._take(count)

    def finish(self) -> Row:
        self._take(self.remaining_tokens)
        return Row(self.source, self.history)

    def _take(self, count: int) -> None:
        """Reads the recorded history, so a wrongly copied prefix stays wrong."""
        start = len(self.history)
        self.history += self._prompt[start : start + count]


class FakeGroup(Group):
    """Holds a byte for each position of each row, in sizes as those of arenas."""

    def __init__(self, logits: Logits, width: int) -> None:
        self.width = width
        self.rows: list[Row | None] = []
        self._logits = logits
        self._extent = BufferShape()
        self.reservation = BufferShape()
        self.expected_sequences = 0

    @property
    def state_bytes(self) -> int:
        return MemoryModel(position=1).bytes(self.width, self._extent)

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        admitted = [FakePrefill(prompt, CachedPrefix()).finish() for prompt in prompts]
        candidates = self._candidates(admitted, row_requests)
        for row in admitted:
            self.rows += [row, *[None] * (self.width - 1)]
        self._ensure_capacity()
        return candidates

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        assert self.width == 1
        for prompt in prompts:
            assert len(prompt.token_ids) == 1
            self.rows.append(Row(FakePrefill(prompt, CachedPrefix()).source, ()))
        self._ensure_capacity()

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        assert isinstance(prefill, FakePrefill)
        row = prefill.finish()
        candidates = self._candidates([row], [row_request])
        self.rows += [row, *[None] * (self.width - 1)]
        self._ensure_capacity()
        return candidates

    def copy_block(self, slot: int, start: int, stop: int) -> FakeBlock:
        row = self.rows[slot * self.width]
        return FakeBlock(row.history[start:stop])

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        assert token_ids.shape == (len(self.rows),)
        grown = zip(self.rows, token_ids.tolist(), strict=True)
        self.rows = [row and Row(row.source, (*row.history, token)) for row, token in grown]
        self._ensure_capacity()
        return self._candidates(self.rows, row_requests)

    def step_greedily(self, token_ids: NDArray[np.int64], rule: GreedyRule) -> GreedyTokens:
        request = CandidateRequest(1 + len(rule.banned), rule.edit)
        tokens, log_probs = [], []
        for _ in range(GREEDY_STEPS):
            found = self.step(token_ids, [request] * len(token_ids))
            is_allowed = ~np.isin(found.token_ids, list(rule.banned))
            place = np.arange(len(token_ids)), is_allowed.argmax(axis=1)
            token_ids = found.token_ids[place]
            tokens.append(token_ids)
            log_probs.append(found.log_probs[place])
        return GreedyTokens(np.stack(tokens, axis=1), np.stack(log_probs, axis=1))

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

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        self.reservation, self.expected_sequences = reservation, expected_sequences

    def release(self) -> None:
        self._extent = BufferShape()

    def shrink(self) -> None:
        self.reservation = BufferShape()
        self._extent = self._needed()

    def _ensure_capacity(self) -> None:
        self._extent = self._extent.settled(self._needed(), self.reservation)

    def _needed(self) -> BufferShape:
        longest = max((len(row.history) for row in self.rows if row), default=0)
        return BufferShape.holding(len(self.rows) // self.width, longest, 0)

    def _candidates(
        self, rows: Sequence[Row | None], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        assert len(row_requests) == len(rows)
        logits = np.stack([self._row_logits(row) for row in rows])
        return select_candidates(HostLogits(logits, rank), row_requests)

    def _row_logits(self, row: Row | None) -> NDArray[np.float32]:
        """Logits of every row; those of rows without a beam are meaningless."""
        if row is None:
            return np.zeros_like(self._logits((), (0,)))
        return self._logits(row.source, row.history)


def rank(
    logits: NDArray[np.float32], k: int, temperatures: NDArray[np.float32] | None
) -> Candidates:
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    with np.errstate(invalid="ignore"):  # a row without a token left
        below = logits - logits.max(axis=1, keepdims=True)
    log_probs = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    masses = None if temperatures is None else np.exp(below / temperatures).sum(axis=1)
    best = np.take_along_axis(log_probs, ids, axis=1).astype(np.float32)
    return Candidates(ids, best, masses)


@dataclass
class FakeRunner(Runner):
    logits: Logits
    vocabulary_size: int
    groups: list[FakeGroup] = field(default_factory=list)
    is_closed: bool = False
    footprint: MemoryModel = field(default_factory=lambda: MemoryModel(position=1))
    supports_deferred_admission: bool = True
    takes_chunks: bool = True
    whole_image_token: int | None = None
    greedy_steps: int = 0
    shares_prefixes: bool = False
    spare_bytes: int = 0
    free_bytes: int | None = None

    def group(self, width: int) -> FakeGroup:
        self.groups.append(FakeGroup(self.logits, width))
        return self.groups[-1]

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> FakePrefill:
        return FakePrefill(prompt, cached)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        raise InvalidRequest("this model returns no alignments", field="return_alignment")

    def trim(self) -> None:
        self.spare_bytes = 0

    def close(self) -> None:
        self.is_closed = True
