"""Several greedy steps in one call, bound to a group's arenas."""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Growth
from inference.engine.runners.candidates import GreedyRule, GreedyTokens
from inference.engine.runners.ort.bound_graph import BoundGraph
from inference.engine.runners.ort.greedy_graph import (
    BANS,
    BIAS,
    LOG_PROBS,
    STEPS,
    TOKEN_IDS,
    state_output,
)
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.state.group_state import GroupState


class BoundGreedySteps(BoundGraph):
    """The greedy graph (see `greedy_graph`) over all rows of a group of width 1."""

    def __init__(
        self, sessions: OrtSessions, session: onnxruntime.InferenceSession, state: GroupState
    ) -> None:
        everything = slice(0, len(state))
        super().__init__(sessions, session, state, everything, everything, tokens=1)
        vocabulary_size = sessions.vocabulary_size
        self._bias = self._allocate(BIAS, (1, vocabulary_size), "float32")
        self._bans = self._allocate(BANS, (1, vocabulary_size), "float32")
        self._bind_input(BIAS, self._bias)
        self._bind_input(BANS, self._bans)
        self._rule = GreedyRule()
        self._token_ids = self._allocate(TOKEN_IDS, (self._count, STEPS), "int64")
        self._log_probs = self._allocate(LOG_PROBS, (self._count, STEPS), "float32")
        self._bind_output(TOKEN_IDS, self._token_ids)
        self._bind_output(LOG_PROBS, self._log_probs)
        for arena in state.of(Growth.APPEND):
            written = [state_output(arena.state, step) for step in range(STEPS)]
            self._bind_in_place(arena.state.step_input, written, arena.view(self._rows))
        self._bind_replaced(state, suffix=f"@{STEPS - 1}")

    def run(
        self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32], rule: GreedyRule
    ) -> GreedyTokens:
        """One call.

        Args:
            token_ids: (rows,) the tokens of the first step.
            lengths: (rows,) lengths after the first step, without the prefix.
        """
        self._follow(rule)
        self._write_controls(token_ids[:, None], lengths)
        self._run()
        fetch = self._device.fetch
        return GreedyTokens(fetch(self._token_ids), fetch(self._log_probs))

    def _follow(self, rule: GreedyRule) -> None:
        """Writes a rule unless it is that of the call before."""
        if rule is self._rule:
            return
        self._rule = rule
        size = self._sessions.vocabulary_size
        self._device.upload(rule.bias(size)[None], self._bias)
        self._device.upload(rule.bans(size)[None], self._bans)
