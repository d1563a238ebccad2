"""What the search asks of a model: admit, step, copy, retire. Nothing here knows ONNX or torch.

Two implementations stand behind this protocol with one search above: `OrtRunner` (serving) and
the exporter's `TorchRunner` (verification). A runner owns every tensor and every copy; it never
decides anything.

Legend: B sequences in a group, R = B x width rows, T new positions, S source positions, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.engine.state.footprint import Extent, Footprint
from serving.engine.state.prefix_cache import Block


@dataclass(frozen=True, eq=False)
class Prompt:
    """What one sequence starts from.

    Attributes:
        token_ids: (T,) int64, T >= 1: the decoder's start tokens, then the request's prompt.
        source_ids: (S,) int64: encoder tokens, where the model has a text encoder.
        pixels: (height, width, 3) uint8, where it has an image tower.
    """

    token_ids: NDArray[np.int64]
    source_ids: NDArray[np.int64] | None = None
    pixels: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class Edit:
    """A sparse change of one row's scores, in the order of `transformers`' processors.

    bias is added, then what is positive is divided by factor and what is negative multiplied, then
    offset is added. Rows that share one `Edit` are changed together.

    Attributes:
        token_ids: (n,) int64, distinct.
        bias: (n,) float32.
        factor: (n,) float32, 1 where nothing is penalised.
        offset: (n,) float32; minus infinity bans.
        is_of_log_probs: Change log-probabilities and leave them as they come out, as beam search
            does; otherwise logits are changed, and log-probabilities are taken of the result.
        renormalises: Of changed log-probabilities: take log-softmax once more.
    """

    token_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    factor: NDArray[np.float32]
    offset: NDArray[np.float32]
    is_of_log_probs: bool = False
    renormalises: bool = False


@dataclass(frozen=True, eq=False)
class CandidateRequest:
    """What one row wants to know of its next token. Compared by identity: share what is alike.

    Attributes:
        count: Candidates; a row may be given more, because a neighbour asked for them.
        edit: Applied before the candidates are ranked.
        temperature: Tell the row's `mass` at this temperature.
    """

    count: int
    edit: Edit | None = None
    temperature: float | None = None


@lru_cache(maxsize=1024)
def plain_request(count: int) -> CandidateRequest:
    """The request for so many candidates and nothing else, one object for all rows."""
    return CandidateRequest(count)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best next tokens of each row, after its edit.

    Attributes:
        token_ids: (rows, k) int64, highest score first; of equal ones the lowest id first.
        log_probs: (rows, k) float32: log-softmax over the whole vocabulary at temperature 1.
        masses: (rows,) float32: sum over the vocabulary of exp((score - best) / temperature),
            where some row asked for it.
        emitted: (rows, S) float32: what the model looked at to score these candidates, where
            `step` has an EMIT output. A view; copy what is to be kept.
        more: (row, count) → that row's best so many, or its whole vocabulary where that is less;
            only until the runner's next call.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    masses: NDArray[np.float32] | None = None
    emitted: NDArray[np.float32] | None = None
    more: Callable[[int, int], Candidates] | None = None

    @cached_property
    def ids(self) -> list[list[int]]:
        """`token_ids` as plain numbers, turned once for all rows."""
        return self.token_ids.tolist()  # type: ignore[no-any-return]


class Prefill(Protocol):
    """One prompt on its way into a group, read in pieces beside what runs there."""

    @property
    def remaining_tokens(self) -> int:
        """Tokens that have not been read; at least one until it joins a group."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes held."""
        ...

    def read(self, count: int) -> None:
        """Reads the next `count` tokens, fewer than are left."""
        ...


class Group(Protocol):
    """The live sequences of one beam width, and their state.

    Slot b (0 <= b < B) holds rows [b x width, (b + 1) x width). Slots are contiguous. A sequence's
    rows have equal lengths, because its beams advance together.
    """

    width: int

    @property
    def state_bytes(self) -> int:
        """Bytes held."""
        ...

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Adds sequences in slots [B, B + m): encodes sources, prefills prompts.

        Prefill happens once a sequence, not once a beam: only the first row of each new slot has
        state afterwards, the others get theirs by `copy`.

        Args:
            row_requests: One a prompt.

        Returns:
            One row a prompt, (m, k): what may follow the prompt's last token.

        Raises:
            Exception: the group is as it was.
        """
        ...

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        """Adds sequences in slots [B, B + m) whose prompts, of one token, the next step reads.

        Only where rows are sequences: `width` is 1.

        Raises:
            Exception: the group is as it was.
        """
        ...

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        """Reads what is left of a prompt and adds its sequence in slot B, as `admit` does.

        Raises:
            Exception: the group is as it was.
        """
        ...

    def cut(self, slot: int, start: int, stop: int) -> Block:
        """A copy of positions [start, stop) of a slot's first row, for `Runner.begin`."""
        ...

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Appends one token to every row, (R,) int64; all rows are one longer afterwards.

        Args:
            row_requests: One a row.

        Returns:
            (R, k): what may follow.
        """
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Gives row `targets[i]` the state of row `sources[i]`, of the same slot.

        No row is both a source and a target, and no target is named twice, so order is free.
        """
        ...

    def retire(self, slot: int) -> None:
        """Drops a sequence; the last slot's rows move into the hole, so that slots stay dense."""
        ...

    def reserve(self, reservation: Extent, expected_sequences: int) -> None:
        """Says what room may be taken before it is needed.

        Args:
            reservation: Sizes that are granted, until `tighten`.
            expected_sequences: Sequences that are likely to be here soon, with those that are.
        """
        ...

    def shrink(self) -> None:
        """Gives back all room that no sequence needs now."""
        ...

    def release(self) -> None:
        """Gives back all room; the group is not used afterwards."""
        ...


class Runner(Protocol):
    """One model, ready to decode."""

    vocabulary_size: int
    footprint: Footprint
    """How much memory groups take."""
    supports_deferred_admission: bool
    """Whether groups of one row a sequence can `seat`."""
    takes_chunks: bool
    """Whether prompts may be read in pieces, by `begin` and `join`."""
    shares_prefixes: bool
    """Whether a position's state depends on the tokens up to it and on nothing else."""

    @property
    def spare_bytes(self) -> int:
        """Bytes that are kept for speed alone, until `rest`."""
        ...

    def group(self, width: int) -> Group:
        """A new, empty group. The search keeps one for each width in use."""
        ...

    def begin_prefill(self, prompt: Prompt, blocks: Sequence[Block]) -> Prefill:
        """Begins with a prompt: encodes its source, and takes over what was read of it before.

        Args:
            blocks: What `Group.cut` gave of the prompt's beginning, first to last.
        """
        ...

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """What each of the generated tokens looked at, (tokens, S), by the graph `align`.

        Raises:
            InvalidRequest: the model has no such graph.
        """
        ...

    def trim(self) -> None:
        """Gives back what is kept for speed alone; for when nothing has run for a while."""
        ...

    def close(self) -> None:
        """Frees the model's memory; its groups must not be used afterwards."""
        ...
