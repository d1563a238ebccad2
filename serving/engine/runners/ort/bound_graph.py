"""A graph bound to rows of a group's arenas, to be run on the same addresses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.bundle import Dtype, Graph, Growth, Role
from serving.engine.runners.ort.device import bind_host_input
from serving.engine.runners.ort.sessions import OrtSessions
from serving.engine.state.device import DeviceTensor
from serving.engine.state.group_state import GroupState


class BoundGraph:
    """What `step` and the graphs made of it share: control inputs and HOLD states, bound once.

    Args:
        session: Takes the inputs of `step`.
        rows: The rows of the call.
        slots: The sequences of these rows, for states with one entry per sequence.
        tokens: T, new positions of each row.

    Attributes:
        layout: That of the state when it was bound.
    """

    def __init__(
        self,
        sessions: OrtSessions,
        session: onnxruntime.InferenceSession,
        state: GroupState,
        rows: slice,
        slots: slice,
        tokens: int,
    ) -> None:
        self.layout = state.layout
        self._sessions, self._device, self._session = sessions, sessions.device, session
        self._rows, self._slots, self._tokens = rows, slots, tokens
        self._prefix = state.prefix
        self._count = rows.stop - rows.start
        self._bound: list[Any] = []  # keeps addresses alive
        self._replaced: list[tuple[DeviceTensor, DeviceTensor]] = []
        self._binding = session.io_binding()
        graph = sessions.manifest.graphs["step"]
        self._controls = self._bind_controls(graph)
        self._total = self._bind_total(graph)
        for arena in state.of(Growth.HOLD):
            self._bind_input(arena.state.step_input, arena.view(slots))
        self._upload(Role.SOURCE, np.array(state.source_lengths[slots], np.int32))
        self._upload(Role.LAST, np.zeros(self._count, np.int64))

    def _write_controls(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
        """Writes (rows, T) tokens and (rows,) lengths after them, without the prefix."""
        self._device.upload(token_ids, self._controls[Role.TOKENS])
        reached = lengths + self._prefix if self._prefix else lengths
        if Role.LENGTHS in self._controls:
            self._device.upload(reached, self._controls[Role.LENGTHS])
        self._total[...] = reached.max()

    def _run(self) -> None:
        """Runs the graph, then moves the new values of REPLACE states into place."""
        self._session.run_with_iobinding(self._binding)
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

    def _bind_in_place(self, name: str, outputs: Sequence[str], tensor: DeviceTensor) -> None:
        self._bound.append(tensor)
        self._device.bind_in_place(self._binding, name, outputs, tensor)

    def _bind_replaced(self, state: GroupState, suffix: str = "") -> None:
        """Binds REPLACE states; `suffix` is that of the outputs' names."""
        for arena in state.of(Growth.REPLACE):
            current = arena.view(self._rows)
            following = self._allocate(current.shape, arena.state.dtype)
            self._bind_input(arena.state.step_input, current)
            self._bind_output(f"{arena.state.step_output}{suffix}", following)
            self._replaced.append((current, following))

    def _allocate(self, shape: tuple[int, ...], dtype: Dtype) -> DeviceTensor:
        return self._device.view(self._device.allocate(prod(shape), dtype), shape)

    def _bind_input(self, name: str, tensor: DeviceTensor) -> None:
        self._bound.append(tensor)
        self._device.bind_input(self._binding, name, tensor)

    def _bind_output(self, name: str, tensor: DeviceTensor) -> None:
        self._bound.append(tensor)
        self._device.bind_output(self._binding, name, tensor)
