"""A graph bound to rows of a group's arenas, to be run on the same addresses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype, Graph, Growth, Role
from inference.engine.runners.cuda.graph_ids import UNCAPTURED
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.state.device import DeviceTensor
from inference.engine.state.group_state import GroupState
from inference.engine.state.memory_model import bucket


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
            token_ids = _padded(token_ids, self._count, 0)
            reached = _padded(reached, self._count, 1 + self._prefix)
        self._device.upload(token_ids, self._controls[Role.TOKENS])
        if Role.SOURCE in self._controls:
            sources = np.array(self._state.source_lengths[self._slots], np.int32)
            sources = _padded(sources, self._slots.stop - self._slots.start, 1)
            self._device.upload(sources, self._controls[Role.SOURCE])
        if Role.LENGTHS in self._controls:
            self._device.upload(reached, self._controls[Role.LENGTHS])
        # On CUDA, T = TOTAL is a first prompt, and a captured graph keeps the value: for T = 1
        # that of any length is the size of the cache.
        by_size = self._device.keeps_addresses and self._tokens == 1 and self._positions
        self._total[...] = self._positions if by_size else total

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

    def _bind_in_place(self, name: str, outputs: Sequence[str], tensor: DeviceTensor) -> None:
        self._bound.append((name, tensor))
        self._device.bind_in_place(self._binding, name, outputs, tensor)

    def _bind_replaced(self, state: GroupState, suffix: str = "") -> None:
        """Binds REPLACE states; `suffix` is that of the outputs' names."""
        for arena in state.of(Growth.REPLACE):
            current = arena.view(self._rows)
            output = f"{arena.state.step_output}{suffix}"
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


def _padded(values: NDArray[Any], count: int, filling: int) -> NDArray[Any]:
    """Values of `count` rows, those behind the given ones all alike."""
    padded = np.full((count, *values.shape[1:]), filling, values.dtype)
    padded[: len(values)] = values
    return padded


def _positions(state: GroupState) -> int:
    """P of the APPEND states, the prefix included; 0 without such states."""
    arenas = state.of(Growth.APPEND)
    return max((arena.length for arena in arenas), default=0) + state.prefix if arenas else 0
