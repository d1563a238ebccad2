"""A prompt that ONNX Runtime reads in pieces, in arenas of its own.

The cache operator takes several tokens on a past at batch one only, and a group's rows must stay
dense for those who run; so the prompt is read apart and moves into its slot when it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from serving.bundle import Growth
from serving.engine.runners.ort.admission import write_initial
from serving.engine.runners.ort.step import BoundStep
from serving.engine.runners.protocol import Prompt
from serving.engine.state.group_state import FloatArray, GroupState
from serving.engine.state.prefix_cache import Block

if TYPE_CHECKING:
    from serving.engine.runners.ort.runner import OrtRunner

_ALONE = slice(0, 1)


@dataclass(frozen=True, eq=False)
class OrtPrefixBlock:
    """Some positions of a row, one array of (H, positions, K) for each APPEND state."""

    values: list[FloatArray]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(value.nbytes for value in self.values)


class OrtPrefill:
    """See `serving.engine.runners.protocol.Prefill`.

    Attributes:
        state: One sequence of one row.
    """

    def __init__(self, runner: OrtRunner, prompt: Prompt, blocks: Sequence[Block]) -> None:
        self.state = GroupState(runner.manifest.states, 1, runner.pool)
        self._runner = runner
        self._token_ids = prompt.token_ids
        self._is_single = runner.manifest.graphs["step"].max_tokens_per_call == 1
        source = 0 if prompt.source_ids is None else len(prompt.source_ids)
        self.state.ensure_capacity(1, len(prompt.token_ids), source)
        write_initial(runner, self.state, [prompt], first=0)
        self.state.admit(self._taken_over(blocks), source)

    @property
    def remaining_tokens(self) -> int:
        """Tokens that have not been read."""
        return len(self._token_ids) - self._read_so_far

    @property
    def state_bytes(self) -> int:
        """Bytes held."""
        return self.state.nbytes

    @property
    def _read_so_far(self) -> int:
        return self.state.lengths[0]

    def read(self, count: int) -> None:
        """Reads the next `count` tokens."""
        self._call(count)

    def finish(self) -> BoundStep:
        """Reads what is left; the call says what may follow the prompt."""
        return self._call(self.remaining_tokens)

    def _call(self, count: int) -> BoundStep:
        past = self._read_so_far
        new = self._token_ids[past : past + count]
        size = 1 if self._is_single else count
        call = BoundStep(self._runner, self.state, _ALONE, _ALONE, tokens=size)
        for start in range(0, count, size):
            length = past + start + size
            call.run(new[None, start : start + size], np.array([length], np.int32), past)
        self.state.lengths[0] = past + count
        return call

    def _taken_over(self, blocks: Sequence[Block]) -> int:
        """Writes what was read before; returns how many positions that are."""
        length = 0
        for block in blocks:
            assert isinstance(block, OrtPrefixBlock), "another runner's block"
            for arena, values in zip(self.state.of(Growth.APPEND), block.values, strict=True):
                arena.paste(0, length, values)
            length += block.values[0].shape[1]
        return length
