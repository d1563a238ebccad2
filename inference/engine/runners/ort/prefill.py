"""A prompt that is prefilled in chunks, in arenas of its own.

GroupQueryAttention takes several tokens on a past at batch size 1 only, and a group's rows must
stay dense for its running sequences. So the prompt is prefilled apart and its state copied to a
slot at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.bundle.manifest import Growth
from inference.engine.runners.ort.admission import write_initial
from inference.engine.runners.ort.bound_steps import BoundStep
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.runners.prompt import Prompt
from inference.engine.runners.protocol import Prefill
from inference.engine.state.device import DeviceTensor
from inference.engine.state.group_state import GroupState
from inference.engine.state.prefix_cache import Block, CachedPrefix

_ONLY = slice(0, 1)


@dataclass(frozen=True, eq=False)
class OrtPrefixBlock:
    """Some positions of a row: one tensor (1, H, positions, K) for each APPEND state."""

    values: list[DeviceTensor]
    positions: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(value.nbytes for value in self.values)

    def release(self) -> None:
        """Nothing: the copies are freed with this object."""


class OrtPrefill(Prefill):
    """A group of one row, apart.

    Attributes:
        state: One sequence of one row.
    """

    def __init__(self, sessions: OrtSessions, prompt: Prompt, cached: CachedPrefix[Block]) -> None:
        manifest = sessions.manifest
        self.state = GroupState(manifest.states, 1, sessions.pool)
        self._sessions = sessions
        self._token_ids = prompt.token_ids
        self._is_single = manifest.graphs["step"].max_tokens_per_call == 1
        source = sessions.source_length(prompt)
        self.state.ensure_capacity(1, len(prompt.token_ids), source)
        write_initial(sessions, self.state, [prompt], first=0)
        self._copy_blocks(cached)
        self.state.admit(cached.tokens, source)
        self._write_counts()

    @property
    def remaining_tokens(self) -> int:
        """Tokens not prefilled yet."""
        return len(self._token_ids) - self._done

    @property
    def state_bytes(self) -> int:
        """Bytes held."""
        return self.state.nbytes

    @property
    def _done(self) -> int:
        return self.state.lengths[0]

    def read(self, count: int) -> None:
        """Prefills the next `count` tokens."""
        self._run(count)

    def finish(self) -> BoundStep:
        """Prefills the rest; the returned step has the logits after the prompt."""
        return self._run(self.remaining_tokens)

    def release(self) -> None:
        """Gives its arenas back."""
        self.state.release()

    def _run(self, count: int) -> BoundStep:
        past = self._done
        new = self._token_ids[past : past + count]
        size = 1 if self._is_single else count
        step = BoundStep(self._sessions, self.state, _ONLY, _ONLY, tokens=size)
        for start in range(0, count, size):
            length = past + start + size
            step.run(new[None, start : start + size], np.array([length], np.int32), past)
        self.state.lengths[0] = past + count
        return step

    def _write_counts(self) -> None:
        """Counts the tokens of the cached prefix that states count."""
        done = self._token_ids[: self._done]
        for arena in self.state.of(Growth.REPLACE) if len(done) else ():
            entry = arena.view(_ONLY)
            count = np.count_nonzero(done == arena.state.counted_token)
            self._sessions.device.upload(np.full(entry.shape, count, np.int64), entry)

    def _copy_blocks(self, cached: CachedPrefix[Block]) -> None:
        """Writes cached blocks to the state, as far as they are the prompt's."""
        start = 0
        for block in cached.blocks:
            assert isinstance(block, OrtPrefixBlock), "a block of another runner"
            length = min(block.positions, cached.tokens - start)
            for arena, values in zip(self.state.of(Growth.APPEND), block.values, strict=True):
                arena.write_positions(0, start, values, length)
            start += length
