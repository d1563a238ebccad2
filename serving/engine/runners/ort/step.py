"""The graph `step`, bound to rows of a group's arenas."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Dtype, Graph, Growth, Role, Tensor
from serving.engine.runners.ort.device import bind_host_input, fetch_floats
from serving.engine.runners.ort.sessions import OrtSessions
from serving.engine.state.device import DeviceTensor
from serving.engine.state.group_state import GroupState


class BoundStep:
    """The graph `step` with all inputs and outputs bound once, to be run on the same addresses.

    Args:
        rows: The rows of the call.
        slots: The sequences of these rows, for states with one entry per sequence.
        tokens: T, new positions of each row.
        logits: Where to write (rows, V); by default the sessions' scratch.

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
    ) -> None:
        self.layout = state.layout
        self._sessions, self._device = sessions, sessions.device
        self._rows, self._slots, self._tokens = rows, slots, tokens
        self._prefix = state.prefix
        self._count = rows.stop - rows.start
        self._bound: list[Any] = []  # keeps addresses alive
        self._binding = sessions.step.io_binding()
        graph = sessions.manifest.graphs["step"]
        self._controls = self._bind_controls(graph)
        self._total = self._bind_total(graph)
        self.logits = sessions.logits_scratch(self._count) if logits is None else logits
        self._bind_output(_name(graph.output(Role.LOGITS)), self.logits)
        self._replaced: list[tuple[DeviceTensor, DeviceTensor]] = []
        self._bind_states(state)
        self._upload(Role.SOURCE, np.array(state.source_lengths[slots], np.int32))
        self._upload(Role.LAST, np.zeros(self._count, np.int64))
        self.emitted = self._bind_emitted(graph.output(Role.EMIT), state)

    def run(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32], past: int = 0) -> None:
        """One call.

        Args:
            token_ids: (rows, T), right-padded.
            lengths: (rows,) lengths after this call, without the prefix.
            past: For T > 1: the length before this call, of a single row; several rows have 0.
        """
        upload, controls = self._device.upload, self._controls
        upload(token_ids, controls[Role.TOKENS])
        reached = lengths + self._prefix if self._prefix else lengths
        if Role.LENGTHS in controls:
            upload(reached, controls[Role.LENGTHS])
        self._total[...] = reached.max()
        if self._tokens > 1:
            self._upload(Role.LAST, lengths.astype(np.int64) - (past + 1))
        self._sessions.step.run_with_iobinding(self._binding)
        for current, following in self._replaced:
            self._device.copy(following, current)

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
                controls[tensor.role] = self._allocate(*kinds[tensor.role])
                self._bind_input(tensor.name, controls[tensor.role])
        return controls

    def _bind_total(self, graph: Graph) -> NDArray[np.int32]:
        """TOTAL is read on the host, also by operators of other devices."""
        total, tensor = np.zeros((), np.int32), graph.input(Role.TOTAL)
        if tensor is not None:
            bind_host_input(self._binding, tensor.name, total)
        return total

    def _bind_emitted(
        self, tensor: Tensor | None, state: GroupState
    ) -> Callable[[int], NDArray[np.float32]] | None:
        """Binds the EMIT output, (R, S); S is the bucket of the HOLD states."""
        if tensor is None:
            return None
        buckets = [arena.length for arena in state.of(Growth.HOLD) if "S" in arena.state.shape]
        width = tensor.shape[1] if isinstance(tensor.shape[1], int) else buckets[0]
        emitted = self._allocate((self._count, width), tensor.dtype)
        self._bind_output(tensor.name, emitted)
        device = self._device
        return lambda row: fetch_floats(device, device.entries(emitted, row, row + 1))[0]

    def _bind_states(self, state: GroupState) -> None:
        for arena in state.of(Growth.HOLD):
            self._bind_input(arena.state.step_input, arena.view(self._slots))
        for arena in state.of(Growth.APPEND):
            cells = arena.view(self._rows)
            self._bind_input(arena.state.step_input, cells)
            self._bind_output(arena.state.step_output, cells)
        for arena in state.of(Growth.REPLACE):
            current = arena.view(self._rows)
            following = self._allocate(current.shape, arena.state.dtype)
            self._bind_input(arena.state.step_input, current)
            self._bind_output(arena.state.step_output, following)
            self._replaced.append((current, following))

    def _allocate(self, shape: tuple[int, ...], dtype: Dtype) -> DeviceTensor:
        return self._device.view(self._device.allocate(prod(shape), dtype), shape)

    def _bind_input(self, name: str, tensor: DeviceTensor) -> None:
        self._bound.append(tensor)
        self._device.bind_input(self._binding, name, tensor)

    def _bind_output(self, name: str | None, tensor: DeviceTensor) -> None:
        assert name is not None
        self._bound.append(tensor)
        self._device.bind_output(self._binding, name, tensor)


def _name(tensor: Tensor | None) -> str:
    assert tensor is not None, "checked when the sessions were opened"
    return tensor.name
