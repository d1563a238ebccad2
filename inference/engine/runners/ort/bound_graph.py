"""Graphs bound to rows of a group's arenas, to be run on the same addresses again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype, Graph, Growth, Role, Tensor
from inference.engine.runners.candidates import GreedyRule, GreedyTokens
from inference.engine.runners.ort.greedy_graph import BANS, BIAS, CALL_S, LOG_PROBS, TOKEN_IDS
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.state.device import UNCAPTURED, DeviceTensor
from inference.engine.state.group_state import GroupState, bucket


class BoundGraph:
    """What `step` and the graphs made of it share: control inputs and HOLD states, bound once.

    Args:
        session: Takes the inputs of `step`.
        rows: The rows of the call.
        slots: The sequences of these rows, for states with one entry per sequence.
        tokens: T, new positions of each row.
        is_captured: Runs may be captured as a graph: everything bound lies at addresses that recur,
            and the rows may be more than there are, see `padded_sequences`.

    It is valid until the state moves.
    """

    def __init__(
        self,
        sessions: OrtSessions,
        session: onnxruntime.InferenceSession,
        state: GroupState,
        rows: slice,
        slots: slice,
        tokens: int,
        *,
        is_captured: bool = False,
    ) -> None:
        self._sessions, self._device, self._session = sessions, sessions.device, session
        self._state, self._rows, self._slots, self._tokens = state, rows, slots, tokens
        self._prefix = state.prefix
        self._count = rows.stop - rows.start
        self._width = state.width
        self._positions = _positions(state)
        self._is_captured, self._graph_id = is_captured, UNCAPTURED
        self._reached = np.zeros(0, np.int32)
        self._bound: list[tuple[str, DeviceTensor]] = []  # keeps addresses alive
        self._replaced: list[tuple[DeviceTensor, DeviceTensor]] = []
        self._binding = session.io_binding()
        graph = sessions.manifest.graphs["step"]
        self._controls = self._bind_controls(graph)
        self._total = self._bind_total(graph)
        for arena in state.of(Growth.HOLD):
            self._bind_input(arena.state.step_input, arena.view(slots))
        self._upload(Role.LAST, np.zeros(self._count, np.int64))

    def _write_controls(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
        """Writes (rows, T) tokens and (rows,) lengths after them, without the prefix.

        Rows that are bound beyond these read one token and write one position of their own.
        """
        reached = lengths + self._prefix if self._prefix else lengths
        total = reached.max()
        if self._count > len(lengths):
            token_ids = _pad_rows(token_ids, self._count, 0)
            reached = _pad_rows(reached, self._count, 1 + self._prefix)
        self._device.upload(token_ids, self._controls[Role.TOKENS])
        if Role.SOURCE in self._controls:
            sources = np.array(self._state.source_lengths[self._slots], np.int32)
            sources = _pad_rows(sources, self._slots.stop - self._slots.start, 1)
            self._device.upload(sources, self._controls[Role.SOURCE])
        self._reached = reached
        self._upload(Role.LENGTHS, reached)
        # On CUDA, T = TOTAL is a first prompt, and a captured graph keeps the value: for T = 1
        # that of any length is the size of the cache.
        by_size = self._device.keeps_addresses and self._tokens == 1 and self._positions
        self._total[...] = self._positions if by_size else total

    def _advance_controls(self, token_ids: DeviceTensor) -> None:
        """Writes (rows, 1) tokens that follow those of the call before, of every row."""
        self._device.copy(token_ids, self._controls[Role.TOKENS])
        self._reached += 1
        self._upload(Role.LENGTHS, self._reached)
        self._total += 1

    def _run(self) -> None:
        """Runs the graph, then moves the new values of REPLACE states into place."""
        if self._is_captured and self._graph_id == UNCAPTURED:
            self._graph_id = self._sessions.graph_ids.of(self._addresses())
        self._device.run_bound(self._session, self._binding, self._graph_id)
        for current, following in self._replaced:
            self._device.copy(following, current)

    def _addresses(self) -> Hashable:
        """Everything that a captured run would keep: names, addresses, shapes, values read on the
        host.
        """
        bound = [(name, self._device.address(each), each.shape) for name, each in self._bound]
        return (*bound, int(self._total) if self._has_total else 0)

    def _upload(self, role: Role, values: NDArray[Any]) -> None:
        if role in self._controls:
            self._device.upload(values, self._controls[role])

    def _bind_controls(self, graph: Graph) -> dict[Role, DeviceTensor]:
        """Inputs that the host writes before each call."""
        rows, sequences = self._count, self._slots.stop - self._slots.start
        kinds: dict[Role, tuple[tuple[int, ...], Dtype]] = {
            Role.TOKENS: ((rows, self._tokens), "int64"),
            Role.LENGTHS: ((rows,), "int32"),
            Role.LAST: ((rows,), "int64"),
            Role.SOURCE: ((sequences,), "int32"),
        }
        controls = {}
        for tensor in graph.inputs:
            if tensor.role in kinds:
                controls[tensor.role] = self._allocate(tensor.name, *kinds[tensor.role])
                self._bind_input(tensor.name, controls[tensor.role])
        return controls

    def _bind_total(self, graph: Graph) -> NDArray[np.int32]:
        """TOTAL is read on the host, also by operators of other devices."""
        total, tensor = np.zeros((), np.int32), graph.input(Role.TOTAL)
        self._has_total = tensor is not None
        if tensor is not None:
            self._device.bind_host_value(self._binding, tensor.name, total)
        return total

    def _bind_states(self, state: GroupState) -> None:
        """APPEND states are written in place: one address is input and output."""
        for arena in state.of(Growth.APPEND):
            names, tensor = arena.state, arena.view(self._rows)
            assert names.step_output is not None
            self._bound.append((names.step_input, tensor))
            self._device.bind_in_place(self._binding, names.step_input, names.step_output, tensor)
        for arena in state.of(Growth.REPLACE):
            current, output = arena.view(self._rows), arena.state.step_output
            assert output is not None
            name = f"{output}/{self._width}"  # moved at once: all of this width write to it
            following = self._sessions.scratch(name, current.shape, arena.state.dtype)
            self._bind_input(arena.state.step_input, current)
            self._bind_output(output, following)
            self._replaced.append((current, following))

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: Dtype) -> DeviceTensor:
        """Memory of this binding; for captured runs that of every one of this name and width."""
        if self._is_captured:
            return self._sessions.scratch(f"{name}/{self._width}", shape, dtype)
        return self._device.view(self._device.allocate(prod(shape), dtype), shape)

    def _bind_input(self, name: str, tensor: DeviceTensor) -> None:
        self._bound.append((name, tensor))
        self._device.bind_input(self._binding, name, tensor)

    def _bind_output(self, name: str, tensor: DeviceTensor) -> None:
        self._bound.append((name, tensor))
        self._device.bind_output(self._binding, name, tensor)


def padded_sequences(state: GroupState) -> int:
    """Sequences that a captured run is bound to: sizes of a series, so that runs recur."""
    return min(bucket(len(state), smallest=1), state.capacity)


def _pad_rows(values: NDArray[Any], count: int, filling: int) -> NDArray[Any]:
    """Values of `count` rows, those behind the given ones all alike."""
    padded = np.full((count, *values.shape[1:]), filling, values.dtype)
    padded[: len(values)] = values
    return padded


def _positions(state: GroupState) -> int:
    """P of the APPEND states, the prefix included; 0 without such states."""
    arenas = state.of(Growth.APPEND)
    return max((arena.length for arena in arenas), default=0) + state.prefix if arenas else 0


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
        self._bind_states(state)
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
        return lambda row: device.fetch_floats(device.entries(emitted, row, row + 1))[0]


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


class BoundGreedyStep(BoundGraph):
    """The greedy graph (see `greedy_graph`) over all rows of a group of width 1.

    Args:
        rules: Those of the group.
    """

    def __init__(self, sessions: OrtSessions, state: GroupState, rules: RuleInputs) -> None:
        everything = slice(0, len(state))
        super().__init__(sessions, sessions.greedy, state, everything, everything, tokens=1)
        self._rules = rules
        self._bind_input(BIAS, rules.bias)
        self._bind_input(BANS, rules.bans)
        self._token_ids = self._allocate(TOKEN_IDS, (self._count, 1), "int64")
        self._log_probs = self._allocate(LOG_PROBS, (self._count, 1), "float32")
        self._bind_output(TOKEN_IDS, self._token_ids)
        self._bind_output(LOG_PROBS, self._log_probs)
        self._bind_states(state)

    def run(
        self,
        token_ids: NDArray[np.int64],
        lengths: NDArray[np.int32],
        rule: GreedyRule,
        steps: int,
        ends: frozenset[int],
    ) -> GreedyTokens:
        """Some steps; no further one when a quarter of the rows have ended, or after `CALL_S`.

        Args:
            token_ids: (rows,) the tokens of the first step.
            lengths: (rows,) lengths after the first step, without the prefix.
        """
        stop_s, ended = time.perf_counter() + CALL_S, set[int]()
        chosen = np.empty((self._count, steps), np.int64)
        log_probs = np.empty((self._count, steps), np.float32)
        self._rules.follow(rule)
        self._write_controls(token_ids[:, None], lengths)
        for step in range(steps):
            if step:
                self._advance_controls(self._token_ids)
            self._run()
            found = self._device.fetch_all([self._token_ids, self._log_probs])
            chosen[:, step : step + 1], log_probs[:, step : step + 1] = found
            tokens = enumerate(chosen[:, step].tolist())
            ended.update(row for row, token_id in tokens if token_id in ends)
            if 4 * len(ended) >= self._count or time.perf_counter() > stop_s:
                break
        return GreedyTokens(chosen[:, : step + 1], log_probs[:, : step + 1])
