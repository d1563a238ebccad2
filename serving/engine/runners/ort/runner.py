"""The runner over ONNX Runtime on the CPU: bound buffers, caches written in place.

A step binds the arenas' live rows once and runs again and again on the same addresses, until a
sequence joins, leaves or outgrows its bucket. Keys and values never pass through Python; copies
are numpy views of the arenas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.bundle import Bundle, Growth, Manifest, Role
from serving.engine.runners.edits import select_candidates
from serving.engine.runners.ort.admission import feed, right_padded, write_initial
from serving.engine.runners.ort.prefill import OrtPrefill, OrtPrefixBlock
from serving.engine.runners.ort.step import BoundStep
from serving.engine.runners.ort.topk_graph import TopK
from serving.engine.runners.protocol import CandidateRequest, Candidates, Prefill, Prompt
from serving.engine.state.buffer_pool import BufferPool
from serving.engine.state.footprint import Extent, Footprint
from serving.engine.state.group_state import GroupState
from serving.engine.state.prefix_cache import Block
from serving.errors import BundleError, InvalidRequest

SPARE_BYTES = 512 << 20
_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # slower than what it replaces on the CPU provider


class OrtRunner:
    """Sessions of one bundle's decoder graphs.

    Args:
        bundle: A generator's bundle.
        threads: Intra-op threads of the sessions.
        spare_bytes: Of arenas that were left, what is kept to be used again.

    Raises:
        BundleError: a graph does not load, or asks for what this runner does not have.
    """

    def __init__(self, bundle: Bundle, threads: int, spare_bytes: int = SPARE_BYTES) -> None:
        manifest = bundle.manifest
        _refuse_unsupported(manifest)
        options = session_options(threads)
        self.manifest = manifest
        self.step = _open(bundle.path(manifest.graphs["step"].file), options)
        admit = manifest.graphs.get("admit")
        self.admit = _open(bundle.path(admit.file), options) if admit else None
        assert manifest.vocabulary_size is not None
        self.vocabulary_size = manifest.vocabulary_size
        self._bundle, self._options = bundle, options
        self.topk = TopK(options, self.vocabulary_size)
        self._logits = np.zeros((0, self.vocabulary_size), np.float32)
        self.footprint = Footprint.of(manifest.states)
        self.pool = BufferPool(spare_bytes)
        self.supports_deferred_admission = True
        self.takes_chunks = True
        growths = {state.growth for state in manifest.states}
        self.shares_prefixes = self.admit is None and growths == {Growth.APPEND}

    def group(self, width: int) -> OrtGroup:
        """A new, empty group."""
        return OrtGroup(self, width)

    def begin_prefill(self, prompt: Prompt, blocks: Sequence[Block]) -> OrtPrefill:
        """Begins with a prompt that is read in pieces; see `Runner.begin`."""
        return OrtPrefill(self, prompt, blocks)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Scratch for that many rows, (rows, V); every call of this runner writes to the same."""
        if rows > len(self._logits):
            self._logits = np.zeros(
                (max(rows, 2 * len(self._logits)), self.vocabulary_size), np.float32
            )
        return self._logits[:rows]

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """What each generated token looked at, (tokens, S); see `Runner.align`."""
        graph = self.manifest.graphs.get("align")
        if graph is None:
            raise InvalidRequest("this model tells no alignment", field="return_alignment")
        forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)[None]
        feeds = {
            tensor.name: forced if tensor.role is Role.TOKENS else feed(tensor, [prompt])
            for tensor in graph.inputs
        }
        output = graph.output(Role.EMIT)
        assert output is not None
        (weights,) = self._aligner.run([output.name], feeds)
        return weights[0, len(prompt.token_ids) - 1 :]  # type: ignore[no-any-return]

    @cached_property
    def _aligner(self) -> onnxruntime.InferenceSession:
        """Opened when first asked for: it holds the decoder's weights a second time."""
        return _open(self._bundle.path(self.manifest.graphs["align"].file), self._options)

    @property
    def spare_bytes(self) -> int:
        """Bytes of arenas that were left; see `Runner.spare_bytes`."""
        return self.pool.spare_bytes

    def trim(self) -> None:
        """Gives spare buffers back."""
        self.pool.clear()

    def close(self) -> None:
        """Drops the sessions."""
        self.trim()
        del self.step, self.admit, self.topk
        self.__dict__.pop("_aligner", None)


class OrtGroup:
    """The live sequences of one beam width."""

    def __init__(self, runner: OrtRunner, width: int) -> None:
        self.width = width
        self._runner = runner
        self._graph = runner.manifest.graphs["step"]
        self._state = GroupState(runner.manifest.states, width, runner.pool)
        self._call: BoundStep | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes of this group's arenas."""
        return self._state.nbytes

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Encodes sources, prefills prompts; see `Group.admit`."""
        state, first = self._state, len(self._state)
        self._begin(prompts, [len(prompt.token_ids) for prompt in prompts])
        try:
            candidates = self._prefill(
                [prompt.token_ids for prompt in prompts], first, row_requests
            )
        except Exception:
            state.truncate(first)
            raise
        state.spread(first)
        return candidates

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        """Encodes sources; see `Group.seat`."""
        assert self.width == 1
        self._begin(prompts, [0] * len(prompts))

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        """Reads what is left of a prompt, moves it into the next slot; see `Group.join`."""
        assert isinstance(prefill, OrtPrefill), "another runner's prompt"
        call, read = prefill.finish(), prefill.state
        candidates = self._answer(call.logits, [row_request], call.emitted)
        self._call = None
        self._state.ensure_capacity(len(self._state) + 1, read.lengths[0], read.source_lengths[0])
        self._state.adopt(read)
        read.release()
        return candidates

    def cut(self, slot: int, start: int, stop: int) -> OrtPrefixBlock:
        """Copies positions of a slot's first row; see `Group.cut`."""
        row = slot * self.width
        return OrtPrefixBlock([a.cut(row, start, stop) for a in self._state.of(Growth.APPEND)])

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Appends one token to every row; see `Group.step`."""
        state = self._state
        state.ensure_capacity(len(state), max(state.lengths) + 1)
        state.grow()
        if self._call is None or self._call.layout != state.layout:
            rows, slots = slice(0, len(state) * self.width), slice(0, len(state))
            self._call = BoundStep(self._runner, state, rows, slots, tokens=1)
        self._call.run(token_ids[:, None], _repeat(state.lengths, self.width))
        return self._answer(self._call.logits, row_requests, self._call.emitted)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies rows; see `Group.copy`."""
        self._state.copy_rows(sources, targets)

    def retire(self, slot: int) -> None:
        """Drops a sequence; see `Group.retire`."""
        self._state.retire(slot)

    def reserve(self, reservation: Extent, expected_sequences: int) -> None:
        """Sizes to stay within; see `Group.expect`."""
        self._state.reservation, self._state.expected_sequences = reservation, expected_sequences

    def shrink(self) -> None:
        """Gives back room; see `Group.tighten`."""
        self._call = None
        self._state.shrink()

    def release(self) -> None:
        """Gives back everything; see `Group.leave`."""
        self._call = None
        self._state.release()

    def _begin(self, prompts: Sequence[Prompt], lengths: Sequence[int]) -> None:
        """Gives prompts slots, with what their sequences start from and room for their tokens."""
        state, first = self._state, len(self._state)
        sources = [0 if p.source_ids is None else len(p.source_ids) for p in prompts]
        self._call = None  # its buffers may be re-laid, and must not be kept alive
        state.ensure_capacity(first + len(prompts), max(1, *lengths), max(sources))
        write_initial(self._runner, state, prompts, first)
        for length, source in zip(lengths, sources, strict=True):
            state.admit(length, source)

    def _prefill(
        self,
        token_ids: list[NDArray[np.int64]],
        first: int,
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Runs the prompts on one row each, [first x width, first x width + m)."""
        lengths = [len(ids) for ids in token_ids]
        if self._graph.max_tokens_per_call == 1 and max(lengths) > 1:
            return self._prefill_singly(token_ids, first, row_requests)
        rows = slice(first * self.width, first * self.width + len(token_ids))
        slots = slice(first, first + len(token_ids))
        call = BoundStep(self._runner, self._state, rows, slots, tokens=max(lengths))
        call.run(right_padded(token_ids), np.array(lengths, np.int32))
        return self._answer(call.logits, row_requests, call.emitted)

    def _prefill_singly(
        self,
        token_ids: list[NDArray[np.int64]],
        first: int,
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Token by token, sequence by sequence: recurrent decoders cannot take a padded T."""
        logits, emitted = self._runner.logits(len(token_ids)), []
        for index, ids in enumerate(token_ids):
            row, slot = first * self.width + index, first + index
            call = BoundStep(
                self._runner, self._state, slice(row, row + 1), slice(slot, slot + 1), tokens=1,
                logits=logits[index : index + 1],
            )  # fmt: skip
            for position, token in enumerate(ids.tolist()):
                call.run(np.array([[token]], np.int64), np.array([position + 1], np.int32))
            if call.emitted is not None:
                emitted.append(call.emitted)
        return self._answer(logits, row_requests, np.concatenate(emitted) if emitted else None)

    def _answer(
        self,
        logits: NDArray[np.float32],
        row_requests: Sequence[CandidateRequest],
        emitted: NDArray[np.float32] | None,
    ) -> Candidates:
        return select_candidates(logits, row_requests, self._runner.topk.rank, emitted)


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
