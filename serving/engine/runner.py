"""What the search asks of a model: admit, step, copy, retire. Nothing here knows ONNX or torch.

Two implementations stand behind this protocol with one search above: `OrtRunner` (serving) and
the exporter's `TorchRunner` (verification). A runner owns every tensor and every copy; it never
decides anything.

Legend: B sequences in a group, R = B x width rows, T new positions, S source positions, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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
class Candidates:
    """The best next tokens of each row.

    Attributes:
        token_ids: (rows, k) int64, highest logit first; of equal logits the lowest id first.
        log_probs: (rows, k) float32: log-softmax of the raw logits over the whole vocabulary.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class Group(Protocol):
    """The live sequences of one beam width, and their state.

    Slot b (0 <= b < B) holds rows [b x width, (b + 1) x width). Slots are contiguous. A sequence's
    rows have equal lengths, because its beams advance together.
    """

    width: int

    def admit(self, prompts: Sequence[Prompt], k: int) -> Candidates:
        """Adds sequences in slots [B, B + m): encodes sources, prefills prompts.

        Prefill happens once a sequence, not once a beam: only the first row of each new slot has
        state afterwards, the others get theirs by `copy`.

        Returns:
            One row a prompt, (m, k): what may follow the prompt's last token.
        """
        ...

    def step(self, token_ids: NDArray[np.int64], k: int) -> Candidates:
        """Appends one token to every row, (R,) int64; all rows are one longer afterwards.

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


class Runner(Protocol):
    """One model, ready to decode."""

    vocabulary_size: int

    def group(self, width: int) -> Group:
        """A new, empty group. The search keeps one for each width in use."""
        ...

    def close(self) -> None:
        """Frees the model's memory; its groups must not be used afterwards."""
        ...
