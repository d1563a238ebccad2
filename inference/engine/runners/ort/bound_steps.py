"""The graph `step`, and several greedy steps as one graph, bound to a group's arenas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Growth, Role, Tensor
from inference.engine.runners.candidates import GreedyRule, GreedyTokens
from inference.engine.runners.ort.bound_graph import BoundGraph
from inference.engine.runners.ort.device import fetch_floats
from inference.engine.runners.ort.greedy_graph import (
    BANS,
    BIAS,
    LOG_PROBS,
    STEPS,
    TOKEN_IDS,
    state_output,
)
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.state.device import DeviceTensor
from inference.engine.state.group_state import GroupState


class BoundStep(BoundGraph):
    """The graph `step` with all inputs and outputs bound once, to be run on the same addresses.

    Args:
        rows: The rows of the call.
        slots: The sequences of these rows, for states with one entry per sequence.
        tokens: T, new positions of each row.
        logits: Where to write (rows, V); by default the sessions' scratch.
        is_captured: See `BoundGraph`.

    Attributes:
        logits: (rows, V) in the graph's dtype, valid after `run`.
        emitted: row → its EMIT output, (S,), valid after `run`; None without such an output.
    """

    def __init__(
        self,
        sessions: OrtSessions,
        state: GroupState,
        rows: slice,
        slots: slice,
        tokens: int,
        logits: DeviceTensor | None = None,
        *,
        is_captured: bool = False,
    ) -> None:
        super().__init__(
            sessions, sessions.step, state, rows, slots, tokens, is_captured=is_captured
        )
        graph = sessions.manifest.graphs["step"]
        output = graph.output(Role.LOGITS)
        assert output is not None, "checked when the sessions were opened"
        self.logits = sessions.logits_scratch(self._count) if logits is None else logits
        self._bind_output(output.name, self.logits)
        self._bind_appended(state)
        self._bind_replaced(state)
        self.emitted = self._bind_emitted(graph.output(Role.EMIT), state)

    def run(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32], past: int = 0) -> None:
        """One call.

        Args:
            token_ids: (rows, T), right-padded.
            lengths: (rows,) lengths after this call, without the prefix.
            past: For T > 1: the length before this call, of a single row; several rows have 0.
        """
        self._write_controls(token_ids, lengths)
        if self._tokens > 1:
            self._upload(Role.LAST, lengths.astype(np.int64) - (past + 1))
        self._run()

    def _bind_appended(self, state: GroupState) -> None:
        """APPEND states are written in place: one address is input and output."""
        for arena in state.of(Growth.APPEND):
            names = arena.state
            assert names.step_output is not None
            self._bind_in_place(names.step_input, [names.step_output], arena.view(self._rows))

    def _bind_emitted(
        self, tensor: Tensor | None, state: GroupState
    ) -> Callable[[int], NDArray[np.float32]] | None:
        """Binds the EMIT output, (R, S); S is the bucket of the HOLD states."""
        if tensor is None:
            return None
        buckets = [arena.length for arena in state.of(Growth.HOLD) if "S" in arena.state.shape]
        width = tensor.shape[1] if isinstance(tensor.shape[1], int) else buckets[0]
        emitted = self._allocate(tensor.name, (self._count, width), tensor.dtype)
        self._bind_output(tensor.name, emitted)
        device = self._device
        return lambda row: fetch_floats(device, device.entries(emitted, row, row + 1))[0]


class RuleInputs:
    """What greedy graphs of any number of rows read of a rule, (1, V) each."""

    def __init__(self, sessions: OrtSessions) -> None:
        self._device, size = sessions.device, sessions.vocabulary_size
        self.bias, self.bans = (
            self._device.view(self._device.allocate(size, "float32"), (1, size)) for _ in range(2)
        )
        self._rule: GreedyRule | None = None

    def follow(self, rule: GreedyRule) -> None:
        """Writes a rule unless it is that of the call before."""
        if rule is self._rule:
            return
        self._rule = rule
        size = self.bias.shape[1]
        self._device.upload(rule.bias(size)[None], self.bias)
        self._device.upload(rule.bans(size)[None], self.bans)


class BoundGreedySteps(BoundGraph):
    """The greedy graph (see `greedy_graph`) over all rows of a group of width 1.

    Args:
        rules: Those of the group.
    """

    def __init__(
        self,
        sessions: OrtSessions,
        session: onnxruntime.InferenceSession,
        state: GroupState,
        rules: RuleInputs,
    ) -> None:
        everything = slice(0, len(state))
        super().__init__(sessions, session, state, everything, everything, tokens=1)
        self._rules = rules
        self._bind_input(BIAS, rules.bias)
        self._bind_input(BANS, rules.bans)
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
        self._rules.follow(rule)
        self._write_controls(token_ids[:, None], lengths)
        self._run()
        return GreedyTokens(*self._device.fetch_all([self._token_ids, self._log_probs]))
