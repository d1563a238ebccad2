"""The runner over ONNX Runtime on the CPU: bound buffers, caches written in place.

A step binds the arenas' live rows once and runs again and again on the same addresses, until a
sequence joins, leaves or outgrows its bucket. Keys and values never pass through Python; copies
are numpy views of the arenas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.bundle import Bundle, Graph, Growth, Manifest, Role, Tensor
from serving.engine.chooser import Chooser
from serving.engine.edits import answer
from serving.engine.runner import Ask, Candidates, Prompt
from serving.engine.state import FloatArray, GroupState
from serving.errors import BundleError, InvalidRequest

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # slower than what it replaces on the CPU provider


class OrtRunner:
    """Sessions of one bundle's decoder graphs.

    Args:
        bundle: A generator's bundle.
        threads: Intra-op threads of the sessions.

    Raises:
        BundleError: a graph does not load, or asks for what this runner does not have.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        manifest = bundle.manifest
        _refuse_unsupported(manifest)
        options = session_options(threads)
        self.manifest = manifest
        self.step = _open(bundle.path(manifest.graphs["step"].file), options)
        admit = manifest.graphs.get("admit")
        self.admit = _open(bundle.path(admit.file), options) if admit else None
        assert manifest.vocabulary_size is not None
        self.vocabulary_size = manifest.vocabulary_size
        align = manifest.graphs.get("align")
        self._aligner = _open(bundle.path(align.file), options) if align else None
        self.chooser = Chooser(options)
        self._logits = np.zeros((0, self.vocabulary_size), np.float32)

    def group(self, width: int) -> OrtGroup:
        """A new, empty group."""
        return OrtGroup(self, width)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Scratch for that many rows, (rows, V); every call of this runner writes to the same."""
        if rows > len(self._logits):
            self._logits = np.zeros(
                (max(rows, 2 * len(self._logits)), self.vocabulary_size), np.float32
            )
        return self._logits[:rows]

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """What each generated token looked at, (tokens, S); see `Runner.align`."""
        if self._aligner is None:
            raise InvalidRequest("this model tells no alignment", field="return_alignment")
        graph = self.manifest.graphs["align"]
        forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)[None]
        feeds = {
            tensor.name: forced if tensor.role is Role.TOKENS else _feed(tensor, [prompt])
            for tensor in graph.inputs
        }
        output = graph.output(Role.EMIT)
        assert output is not None
        (weights,) = self._aligner.run([output.name], feeds)
        return weights[0, len(prompt.token_ids) - 1 :]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Drops the sessions."""
        del self.step, self.admit, self.chooser, self._aligner


class OrtGroup:
    """The live sequences of one beam width."""

    def __init__(self, runner: OrtRunner, width: int) -> None:
        self.width = width
        self._runner = runner
        self._graph = runner.manifest.graphs["step"]
        self._state = GroupState(runner.manifest.states, width)
        self._call: StepCall | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes of this group's arenas."""
        return self._state.nbytes

    def admit(self, prompts: Sequence[Prompt], asks: Sequence[Ask]) -> Candidates:
        """Encodes sources, prefills prompts; see `Group.admit`."""
        state, first, count = self._state, len(self._state), len(prompts)
        lengths = [len(prompt.token_ids) for prompt in prompts]
        sources = [0 if p.source_ids is None else len(p.source_ids) for p in prompts]
        state.reserve(first + count, max(lengths), max(sources))
        self._write_initial(prompts, first)
        for length, source in zip(lengths, sources, strict=True):
            state.admit(length, source)
        candidates = self._prefill([prompt.token_ids for prompt in prompts], first, asks)
        for index in range(count - 1, 0, -1):  # from the last, so that no row is overwritten
            row = first * self.width + index
            if self.width > 1:
                state.copy_row(row, (first + index) * self.width, lengths[index])
        self._call = None
        return candidates

    def step(self, token_ids: NDArray[np.int64], asks: Sequence[Ask]) -> Candidates:
        """Appends one token to every row; see `Group.step`."""
        state = self._state
        state.reserve(len(state), max(state.lengths) + 1)
        state.grow()
        if self._call is None or self._call.layout != state.layout:
            rows, slots = slice(0, len(state) * self.width), slice(0, len(state))
            self._call = StepCall(self._runner, state, rows, slots, tokens=1)
        self._call.run(token_ids[:, None], _repeat(state.lengths, self.width))
        return self._answer(self._call.logits, asks, self._call.emitted)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies rows; see `Group.copy`."""
        for source, target in zip(sources, targets, strict=True):
            self._state.copy_row(source, target, self._state.lengths[source // self.width])

    def retire(self, slot: int) -> None:
        """Drops a sequence; see `Group.retire`."""
        self._state.retire(slot)

    def _write_initial(self, prompts: Sequence[Prompt], first: int) -> None:
        """HOLD and REPLACE of new slots: what `admit` computes, zeros otherwise."""
        values = _encode(self._runner, prompts)
        for arena in self._state.of(Growth.HOLD):
            assert arena.state.admit_output is not None
            arena.write(first, values[arena.state.admit_output])
        start = first * self.width
        for arena in self._state.of(Growth.REPLACE):
            if arena.state.admit_output is None:
                arena.clear(start, start + len(prompts))
            else:
                arena.write(start, values[arena.state.admit_output])

    def _prefill(
        self, token_ids: list[NDArray[np.int64]], first: int, asks: Sequence[Ask]
    ) -> Candidates:
        """Runs the prompts on one row each, [first x width, first x width + m)."""
        lengths = [len(ids) for ids in token_ids]
        if self._graph.max_tokens_per_call == 1 and max(lengths) > 1:
            return self._prefill_singly(token_ids, first, asks)
        rows = slice(first * self.width, first * self.width + len(token_ids))
        slots = slice(first, first + len(token_ids))
        call = StepCall(self._runner, self._state, rows, slots, tokens=max(lengths))
        call.run(_right_padded(token_ids), np.array(lengths, np.int32))
        return self._answer(call.logits, asks, call.emitted)

    def _prefill_singly(
        self, token_ids: list[NDArray[np.int64]], first: int, asks: Sequence[Ask]
    ) -> Candidates:
        """Token by token, sequence by sequence: recurrent decoders cannot take a padded T."""
        logits, emitted = self._runner.logits(len(token_ids)), []
        for index, ids in enumerate(token_ids):
            row, slot = first * self.width + index, first + index
            call = StepCall(
                self._runner, self._state, slice(row, row + 1), slice(slot, slot + 1), tokens=1,
                logits=logits[index : index + 1],
            )  # fmt: skip
            for position, token in enumerate(ids.tolist()):
                call.run(np.array([[token]], np.int64), np.array([position + 1], np.int32))
            if call.emitted is not None:
                emitted.append(call.emitted)
        return self._answer(logits, asks, np.concatenate(emitted) if emitted else None)

    def _answer(
        self,
        logits: NDArray[np.float32],
        asks: Sequence[Ask],
        emitted: NDArray[np.float32] | None,
    ) -> Candidates:
        return answer(logits, asks, self._runner.chooser.rank, emitted)


class StepCall:
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

    def run(self, token_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
        """One call.

        Args:
            token_ids: (rows, T), right-padded.
            lengths: (rows,) lengths after this call.
        """
        self._tokens[:] = token_ids
        self._lengths[:] = lengths
        self._total[...] = lengths.max()
        if self._tokens.shape[1] > 1:
            self._last[:] = lengths - 1
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


def _encode(runner: OrtRunner, prompts: Sequence[Prompt]) -> dict[str, FloatArray]:
    """Outputs of the `admit` graph that states start from, by name; {} without such a graph."""
    if runner.admit is None:
        return {}
    states = runner.manifest.states
    names = [state.admit_output for state in states if state.admit_output is not None]
    feeds = {
        tensor.name: _feed(tensor, prompts) for tensor in runner.manifest.graphs["admit"].inputs
    }
    return dict(zip(names, runner.admit.run(names, feeds), strict=True))


def _feed(tensor: Tensor, prompts: Sequence[Prompt]) -> NDArray[np.generic]:
    """One input of the `admit` graph for a batch of prompts."""
    if tensor.role is Role.PIXELS:
        return np.stack([prompt.pixels for prompt in prompts if prompt.pixels is not None])
    sources = [prompt.source_ids for prompt in prompts if prompt.source_ids is not None]
    if tensor.role is Role.SOURCE:
        return np.array([len(ids) for ids in sources], np.int32)
    return _right_padded(sources)


def _right_padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of ids as (rows, longest); 0 fills, which any vocabulary has and lengths mask."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _repeat(lengths: list[int], width: int) -> NDArray[np.int32]:
    return np.repeat(np.array(lengths, np.int32), width)


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Few threads, and none that spins while the engine is idle."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _open(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_SLOW_FUSIONS,
        )
    except Exception as error:  # the runtime's exceptions share no base class
        raise BundleError(f"ONNX Runtime cannot load {path.name}: {error}") from error


def _refuse_unsupported(manifest: Manifest) -> None:
    """Says what this runner cannot serve.

    Raises:
        BundleError: no `step` graph, no vocabulary size, or a state it cannot lay out.
    """
    if "step" not in manifest.graphs:
        raise BundleError(f"{manifest.name} has no step graph: it is not a generator")
    if manifest.vocabulary_size is None:
        raise BundleError(f"{manifest.name} does not say its vocabulary_size: export again")
    for state in manifest.states:
        if state.growth is Growth.APPEND and state.layout != "in_place":
            raise BundleError(
                f"{manifest.name}: state {state.name} has layout {state.layout!r}; the CPU runner "
                "takes in_place only: export for ONNX Runtime"
            )
        if state.growth is Growth.HOLD and state.admit_output is None:
            raise BundleError(f"{manifest.name}: HOLD state {state.name} has no admit_output")
