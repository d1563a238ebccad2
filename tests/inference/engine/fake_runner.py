"""A runner without a model, and requests that join while it runs.

It keeps rows exactly as the protocol requires, so that a search that moves state wrongly reads
another row's history and returns other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.engine.engine import EngineCore, final_result
from inference.engine.request import EngineRequest, Event
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    Edit,
    GreedyRule,
    GreedyTokens,
    HostLogits,
    select_candidates,
)
from inference.engine.runners.protocol import Capabilities, Group, Prefill, Prompt, Runner
from inference.engine.search.logits_processors import TokenHistory
from inference.engine.sequence import SequenceState
from inference.engine.state.group_state import BufferShape, MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix
from inference.errors import InvalidRequest
from inference.generation import Finished, Generation, TokenChunk


def edit_after(
    rules: Generation, prompt: Sequence[int], generated: Sequence[int], banned: Collection[int] = ()
) -> Edit:
    """What a search edits after these tokens."""
    history = TokenHistory(rules, prompt)
    for token in generated:
        history.accept(token)
    return history.edit(banned)


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

    def step_greedily(
        self, token_ids: NDArray[np.int64], rule: GreedyRule, steps: int, ends: frozenset[int]
    ) -> GreedyTokens:
        request = CandidateRequest(1 + len(rule.banned), rule.edit)
        tokens, log_probs = [], []
        for _ in range(steps):
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
        self._extent = self._extent.adapt(self._needed(), self.reservation)

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


class FakeRunner(Runner):
    spare_bytes = 0
    free_bytes: int | None = None

    def __init__(self, logits: Logits, vocabulary_size: int, **capabilities: Any) -> None:
        self.logits, self.vocabulary_size = logits, vocabulary_size
        self.groups: list[FakeGroup] = []
        self.is_closed = False
        self.footprint = MemoryModel(position=1)
        wanted = {"defers_admission": True, "takes_chunks": True, **capabilities}
        self.capabilities = Capabilities(**wanted)

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


company = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 999), st.sampled_from([1, 2, 3]), st.integers(1, 40)
    ),
    min_size=1,
    max_size=6,
)
"""The step at which each request joins; its seed, beams and tokens."""


Talk = list[tuple[int, int, int, int, int]]
talk = st.lists(
    st.tuples(
        *(st.integers(0, 9), st.integers(0, 12), st.integers(1, 30)),
        *(st.sampled_from([1, 1, 2, 3]), st.integers(1, 20)),
    ),
    min_size=2,
    max_size=6,
)
"""Turns of conversations: the turn that each goes on behind, how many of its last tokens it leaves
out, how many it adds; its beams and tokens."""
_LONGEST = 90


def beam_rules(beams: int = 1, tokens: int = 40) -> Generation:
    return Generation(
        decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=tokens,
        num_beams=beams, num_return_sequences=beams,
    )  # fmt: skip


def converse(decoder: EngineCore, talk: Talk) -> tuple[list[EngineRequest], list[Finished]]:
    """Requests and results of turns, two at once that differ in their prompts' last token."""
    said: list[tuple[int, ...]] = [()]
    asked: list[EngineRequest] = []
    found: list[Finished] = []
    for before, left_out, added, beams, tokens in talk:
        earlier = said[before % len(said)]
        words = np.random.default_rng(added).integers(2, 6, added).tolist()
        prompt = (*earlier[: max(0, len(earlier) - left_out)], *words)[:_LONGEST]
        pair = [
            EngineRequest(beam_rules(beams, tokens), prompt_ids=(*prompt, last), stream=beams == 1)
            for last in (2, 3)
        ]
        results = [final_result(events) for events in run_staggered(decoder, pair, [0, 0])]
        for request, result in zip(pair, results, strict=True):
            said.append((*request.prompt_ids, *result.hypotheses[0].token_ids))
        asked += pair
        found += results
    return asked, found


def finish(decoder: EngineCore) -> None:
    """Take turns until all sequences have ended."""
    for _ in range(5000):
        if decoder.is_idle:
            return
        decoder.step()
    raise AssertionError("sequences wait for ever")


def streamed_ids(events: Iterable[Event]) -> list[int]:
    chunks = [event for event in events if isinstance(event, TokenChunk)]
    return [token for chunk in chunks for token in chunk.token_ids]


def run_staggered(
    decoder: EngineCore, requests: Sequence[EngineRequest], steps: Sequence[int] | None = None
) -> list[list[Event]]:
    """The events of each.

    Args:
        steps: When each joins; by default one at each step.
    """
    outcomes: list[list[Event]] = [[] for _ in requests]
    due = dict(enumerate(range(len(requests)) if steps is None else steps))
    step = 0
    while due or not decoder.is_idle:
        for index in [index for index, when in due.items() if when <= step]:
            del due[index]
            decoder.add(SequenceState(requests[index], outcomes[index].append))
        decoder.step()
        step += 1
        assert step < 5000, "sequences wait for ever"
    return outcomes
