"""One call of the `step` graph over ONNX Runtime, bound to rows of a group's arenas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Graph, Growth, Role, Tensor
from serving.engine.state.group_state import GroupState

if TYPE_CHECKING:
    from serving.engine.runners.ort.runner import OrtRunner


class BoundStep:
    """The `step` graph bound to rows of a group's arenas, to be run on these addresses.

    Args:
        rows: The rows that take part.
        slots: The sequences that these rows belong to, for what is held once a sequence.
        tokens: T, new positions of each row.
        logits: Where to write (rows, V); the runner's scratch if not given.

    Attributes:
        logits: (rows, V), after `run`.
        emitted: (rows, S), after `run`, where the graph has an EMIT output.
    """

    def __init__(
        self,
        runner: OrtRunner,
        state: GroupState,
        rows: slice,
        slots: slice,
        tokens: int,
        logits: NDArray[np.float32] | None = None,
    ) -> None:
        self.layout = state.layout
        self._runner = runner
        self._rows, self._slots = rows, slots
        count = rows.stop - rows.start
        self._tokens = np.zeros((count, tokens), np.int64)
        self._lengths = np.zeros(count, np.int32)
        self._total = np.zeros((), np.int32)
        self._last = np.zeros(count, np.int64)
        self._source = np.array(state.source_lengths[slots], np.int32)
        self.logits = runner.logits(count) if logits is None else logits
        self.emitted: NDArray[np.float32] | None = None
        self._replaced: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = []
        self._bound: list[NDArray[np.generic]] = []  # keeps the addresses alive
        self._binding = runner.step.io_binding()
        self._bind_controls(runner.manifest.graphs["step"])
        self._bind_states(state)
        self._bind_emitted(runner.manifest.graphs["step"].output(Role.EMIT), state)

    def run(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32], past: int = 0) -> None:
        """One call.

        Args:
            token_ids: (rows, T), right-padded.
            lengths: (rows,) lengths after this call.
            past: Where T > 1: the length before this call, of one row alone; several have none.
        """
        self._tokens[:] = token_ids
        self._lengths[:] = lengths
        self._total[...] = lengths.max()
        if self._tokens.shape[1] > 1:
            self._last[:] = lengths - (past + 1)
        self._runner.step.run_with_iobinding(self._binding)
        for current, following in self._replaced:
            current[:] = following

    def _bind_controls(self, graph: Graph) -> None:
        arrays: dict[Role, NDArray[np.generic]] = {
            Role.TOKENS: self._tokens,
            Role.LENGTHS: self._lengths,
            Role.TOTAL: self._total,
            Role.LAST: self._last,
            Role.SOURCE: self._source,
        }
        for tensor in graph.inputs:
            if tensor.role in arrays:
                self._bind_input(tensor.name, arrays[tensor.role])
        logits = graph.output(Role.LOGITS)
        assert logits is not None
        self._bind_output(logits.name, self.logits)

    def _bind_emitted(self, tensor: Tensor | None, state: GroupState) -> None:
        """Binds the EMIT output, (R, S); S is as wide as what is held of the source."""
        if tensor is None:
            return
        held = [(arena, arena.state.shape) for arena in state.of(Growth.HOLD)]
        sizes = [arena.length for arena, shape in held if "S" in shape]
        width = tensor.shape[1] if isinstance(tensor.shape[1], int) else sizes[0]
        self.emitted = np.zeros((len(self._tokens), width), np.float32)
        self._bind_output(tensor.name, self.emitted)

    def _bind_states(self, state: GroupState) -> None:
        for arena in state.of(Growth.HOLD):
            self._bind_input(arena.state.step_input, arena.view(self._slots))
        for arena in state.of(Growth.APPEND):
            cells = arena.view(self._rows)
            self._bind_input(arena.state.step_input, cells)
            self._bind_output(arena.state.step_output, cells)
        for arena in state.of(Growth.REPLACE):
            current = arena.view(self._rows)
            following = np.zeros_like(current)
            self._bind_input(arena.state.step_input, current)
            self._bind_output(arena.state.step_output, following)
            self._replaced.append((current, following))

    def _bind_input(self, name: str, array: NDArray[np.generic]) -> None:
        self._bound.append(array)
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_output(self, name: str | None, array: NDArray[np.generic]) -> None:
        self._bound.append(array)
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
