"""The protocol between search and model: admit, step, copy, retire.

Three implementations, one search above all: `OrtRunner` and `PagedRunner` (serving) and the
exporter's `TorchRunner` (verification). A runner owns all tensors and copies and makes no
decisions. What is optional has a default here: a runner without it says nothing of it.

Legend: B sequences in a group, R = B x width rows, T new positions, S source positions, V
vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    GreedyRule,
    GreedyTokens,
)
from inference.engine.state.group_state import BufferShape, MemoryModel
from inference.engine.state.prefix_cache import Block, BlockPool, CachedPrefix


@dataclass(frozen=True, eq=False)
class Prompt:
    """Inputs of one sequence.

    Attributes:
        token_ids: (T,) int64, T >= 1: the decoder's start tokens, then the request's prompt.
        source_ids: (S,) int64 encoder tokens, for models with a text encoder.
        pixels: (height, width, 3) uint8, for models with an image encoder; (I, height, width, 3)
            where a prompt holds images.
        image_sizes: (I, 2) height and width of each image, where they differ.
    """

    token_ids: NDArray[np.int64]
    source_ids: NDArray[np.int64] | None = None
    pixels: NDArray[np.uint8] | None = None
    image_sizes: NDArray[np.int64] | None = None

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """Images that the prompt holds; [] for models that take one image or none."""
        return images_of(self.pixels, self.image_sizes)


def images_of(
    pixels: NDArray[np.uint8] | None, sizes: NDArray[np.int64] | None = None
) -> list[NDArray[np.uint8]]:
    """The images of a prompt, (height, width, 3) each; [] for one image, which is no list."""
    if pixels is None or pixels.ndim != 4:
        return []
    if sizes is None:
        return list(pixels)
    pairs = zip(pixels, sizes.tolist(), strict=True)
    return [image[:height, :width] for image, (height, width) in pairs]


# ruff: noqa: B027 - what is optional does nothing by default


class Prefill(ABC):
    """One prompt that is prefilled in chunks, outside the group it will join."""

    @property
    @abstractmethod
    def remaining_tokens(self) -> int:
        """Tokens not prefilled yet; at least one until it joins a group."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes held."""

    @abstractmethod
    def read(self, count: int) -> None:
        """Prefills the next `count` tokens; `count` is less than `remaining_tokens`."""

    def score(self, count: int, row_requests: Sequence[CandidateRequest]) -> Candidates:
        """Prefills the next `count` tokens, and returns candidates after the last of them.

        Requires `Capabilities.scores_prompts`.

        Args:
            row_requests: One for each of the last of these tokens; there may be fewer than tokens.
        """
        raise NotImplementedError

    @abstractmethod
    def release(self) -> None:
        """Gives back all memory of a prompt that joins no group."""


class Group(ABC):
    """The live sequences of one beam width, and their state.

    Slot b (0 <= b < B) holds rows [b x width, (b + 1) x width). Slots are contiguous. A sequence's
    rows have equal lengths, because its beams advance together.
    """

    width: int

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes held, those of `Runner.blocks` left out."""

    @property
    def blocks_of_step(self) -> int:
        """Blocks that the next step allocates at most; 0 without `Runner.blocks`."""
        return 0

    @abstractmethod
    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Adds sequences in slots [B, B + m): encodes sources, prefills prompts.

        Prefill runs once per sequence, not once per beam: only the first row of each new slot has
        state afterwards; the others get theirs by `copy`.

        Args:
            row_requests: One per prompt.

        Returns:
            (m, k): candidates after each prompt's last token.

        Raises:
            Exception: the group is unchanged.
        """

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        """Adds sequences in slots [B, B + m) whose prompts, of one token, the next step prefills.

        Requires `width` 1.

        Raises:
            Exception: the group is unchanged.
        """
        raise NotImplementedError

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        """Prefills the rest of a prompt and adds its sequence in slot B, as `admit` does.

        Raises:
            Exception: the group is unchanged.
        """
        raise NotImplementedError

    def copy_block(self, slot: int, start: int, stop: int) -> Block:
        """A copy of positions [start, stop) of a slot's first row, for `Runner.begin_prefill`."""
        raise NotImplementedError

    @abstractmethod
    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Appends one token to every row; all rows are one position longer afterwards.

        Args:
            token_ids: (R,) int64.
            row_requests: One per row.

        Returns:
            (R, k): candidates for the next token.
        """

    def step_greedily(
        self, token_ids: NDArray[np.int64], rule: GreedyRule, steps: int, ends: frozenset[int]
    ) -> GreedyTokens:
        """Takes some steps, at least one, each on the tokens chosen by the one before.

        Appends as many tokens to every row: the given one, then all chosen ones but the last. The
        same tokens as by `step`. Requires `width` 1.

        Args:
            token_ids: (R,) int64.
            steps: How many at most.
            ends: Tokens that end rows; a step more is of no use to these.
        """
        raise NotImplementedError

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies the state of row `sources[i]` to row `targets[i]` of the same slot.

        No row is both a source and a target, and no target occurs twice, so the order is free.
        """

    @abstractmethod
    def retire(self, slot: int) -> None:
        """Drops a sequence; the last slot's rows move to its slot, so that slots stay dense."""

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        """Allows allocation ahead of need.

        Args:
            reservation: Sizes granted until `shrink`.
            expected_sequences: Sequences likely to be live soon, including those that are.
        """

    def shrink(self) -> None:
        """Gives back memory that no live sequence needs now."""

    @abstractmethod
    def release(self) -> None:
        """Gives back all memory; the group is not used afterwards."""


class RaggedGroup(Group):
    """A group whose calls take rows of any number of tokens, as if each token had its own call.

    Drafts (D100) require `width` 1.
    """

    @property
    @abstractmethod
    def pads_rows(self) -> bool:
        """Whether all sequences take as many rows as the one with the longest draft."""

    @abstractmethod
    def take_along(
        self, prefill: Prefill, count: int, row_request: CandidateRequest | None = None
    ) -> None:
        """Prefills the next `count` tokens of a prompt in the call of the next step (D99).

        Requires that `pads_rows` is false.

        Args:
            row_request: Where these are the prompt's last tokens: the step's candidates have one
                more row, those after the prompt, and `join` adds its sequence.
        """

    @abstractmethod
    def join(self, prefill: Prefill) -> None:
        """Adds the sequence of a prompt that was read to its end, in slot B."""

    @abstractmethod
    def has_room(self, drafts: Sequence[Sequence[int]]) -> bool:
        """Whether the memory of such a step is free."""

    @abstractmethod
    def step_with_drafts(
        self,
        token_ids: NDArray[np.int64],
        drafts: Sequence[Sequence[int]],
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Appends a token and its draft to every row; `keep` is called before anything else.

        Args:
            token_ids: (R,) int64.
            drafts: Tokens behind each; may be empty.
            row_requests: One per token and draft token, row after row; with `pads_rows` the last
                of each row again, as often as its draft is shorter than the longest.

        Returns:
            Candidates for each request, with the bits that `step` returns.
        """

    @abstractmethod
    def keep(self, counts: Sequence[int]) -> None:
        """Drops the tokens of the last step behind the first `counts[i]` of row i."""


@dataclass(frozen=True)
class Capabilities:
    """What a runner can do that is optional, and how its prompts must be read.

    Attributes:
        defers_admission: Groups of one row per sequence have `admit_deferred`.
        takes_chunks: Prompts may be prefilled in chunks, by `begin_prefill` and `admit_prefilled`.
        greedy_steps: Most steps of `Group.step_greedily`; 0 where groups do not have it.
        shares_prefixes: A position's state depends on nothing but the tokens up to it.
        reads_whole_prompts: The first call of a row must hold exactly its request's prompt.
        whole_image_token: Stands for parts of images that a row's first call must hold, all of
            them; None: no tokens must be read together (D104).
        scores_prompts: Prefills have `score`, so that given tokens need no step each.
        keeps_buffers: A new group gets the buffers of a released one, so that none is kept without
            rows.
    """

    defers_admission: bool = False
    takes_chunks: bool = False
    greedy_steps: int = 0
    shares_prefixes: bool = False
    reads_whole_prompts: bool = False
    whole_image_token: int | None = None
    scores_prompts: bool = False
    keeps_buffers: bool = False


class Runner(ABC):
    """One model, ready to decode."""

    vocabulary_size: int
    footprint: MemoryModel
    """Memory that groups take, that of `blocks` left out."""
    capabilities: Capabilities = Capabilities()
    blocks: BlockPool | None = None
    """What all groups keep positions in; None where each group has buffers of its own."""

    @property
    def spare_bytes(self) -> int:
        """Bytes kept for speed alone, until `trim`."""
        return 0

    @property
    def free_bytes(self) -> int | None:
        """Free memory of a device of its own; None where memory is the host's."""
        return None

    @abstractmethod
    def group(self, width: int) -> Group:
        """A new, empty group. The engine keeps one for each width in use."""

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> Prefill:
        """Starts a chunked prefill: encodes the source and copies cached prefix blocks.

        Args:
            cached: Results of `Group.copy_block` for the prompt's prefix; none of it where the
                prompt is read from its beginning.
        """
        raise NotImplementedError

    @abstractmethod
    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Attention of each generated token to the source, (tokens, S), by the graph `align`.

        Raises:
            InvalidRequest: the model has no such graph.
        """

    def trim(self) -> None:
        """Frees memory kept for speed alone; called when the engine has been idle for a while."""

    def close(self) -> None:
        """Frees the model; its groups must not be used afterwards."""
