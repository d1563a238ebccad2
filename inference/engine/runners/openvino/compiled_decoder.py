"""Compiled graphs of a decoder, their memory, and one call of them.

Legend: B sequences, R rows, N tokens of a call, M of them that are scored, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import openvino
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Growth, Manifest, Role
from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.openvino.blocks import BlockMemory
from inference.engine.runners.openvino.paged_graph import (
    BEGINS,
    BLOCK_BEGINS,
    BLOCKS,
    LONGEST,
    PAST_LENS,
    SCORED,
    fuse_rotations,
    paged_graph,
)
from inference.engine.runners.openvino.prompt_images import (
    Arrays,
    ImageEncoder,
    ImageInputs,
    ImageRows,
)
from inference.engine.runners.openvino.token_choice import add_token_choice, complete_choice
from inference.engine.runners.ort.logits_graphs import TopK
from inference.engine.runners.ort.runner import source_input
from inference.engine.runners.ort.sessions import CpuDevice, session_options
from inference.engine.runners.protocol import Prompt
from inference.engine.state.group_state import BufferPool, GroupState
from inference.errors import BundleError
from inference.openvino_core import INTEGER_PRECISIONS, openvino_core, run_request, why_not_here
from inference.process_limits import thread_count

LONGEST_MULTIPLE = 256
"""The bound on lengths that OpenVINO 2026.4 is given: it generates the code of attention again when
that passes a multiple of 32 for the first time, which takes 4 ms for GPT-2's 12 layers."""


class Span(NamedTuple):
    """The new tokens of one row in a call.

    Attributes:
        past: Positions that are in the row's blocks.
        tokens: New ones, at least one.
        blocks: Of the row, with room for the new tokens.
        images: What takes the place of its first image tokens, if it has any; see `ImageRows.of`.
        shifts: From the places of its tokens to their positions; see `ImageRows.shifts`.
    """

    past: int
    tokens: int
    blocks: Sequence[int]
    images: Arrays = MappingProxyType({})
    shifts: NDArray[np.int64] | int = 0


def span_of(start: int, stop: int, blocks: Sequence[int], images: ImageRows | None) -> Span:
    """Tokens [start, stop) of a prompt, which may hold images."""
    if images is None:
        return Span(start, stop - start, blocks)
    shifts = images.shifts(start, stop)
    return Span(start, stop - start, blocks, images.of(start, stop), shifts)


class DecoderCall:
    """One infer request of `step`, with its inputs bound; belongs to one group at a time.

    Attributes:
        has_failed: Whether a run has raised.
    """

    def __init__(self, step: Any, manifest: Manifest, memory: BlockMemory) -> None:
        self.has_failed = False
        self._memory, self._version = memory, 0
        self._threads: int = step.get_property("INFERENCE_NUM_THREADS")
        self._request = step.create_infer_request()
        self._names = {name for port in step.inputs for name in port.names}
        graph = manifest.graphs["step"]
        self._tokens, self._lengths, self._source = (
            None if port is None else port.name
            for port in map(graph.input, (Role.TOKENS, Role.LENGTHS, Role.SOURCE))
        )
        self._images = None if manifest.images is None else ImageInputs(manifest)
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def is_current(self) -> bool:
        """Whether it is bound to the memory that blocks have now."""
        return self._version == self._memory.version

    def bind_sources(self, state: GroupState, slots: slice) -> None:
        """Binds what `step` reads of the sources of some slots, until they move."""
        for arena in state.of(Growth.HOLD):
            held = cast(NDArray[Any], arena.view(slots))  # on the host
            self._bind(arena.state.step_input, held)
        if self._source is not None and self._images is None:
            self._write(self._source, np.array(state.source_lengths[slots], np.int32))

    def bind(self, sources: Mapping[str, NDArray[Any]]) -> None:
        """Binds inputs that belong to sources, by name."""
        for name, array in sources.items():
            self._bind(name, array)

    def forget(self, names: Iterable[str]) -> None:
        """Forgets the addresses of inputs that are bound by another group."""
        for name in names:
            self._arrays.pop(name, None)

    def run(
        self, token_ids: NDArray[np.int64], spans: Sequence[Span], scored: NDArray[np.int64]
    ) -> None:
        """One call.

        With fewer rows than threads, OpenVINO 2026.4 divides the positions of a row among threads,
        and adds up their results: other bits than those of a row in a larger batch. Rows without a
        position or a token make up the number.

        Args:
            token_ids: (N,) new tokens of all rows, row after row.
            spans: Of each row.
            scored: (M,) indices in N.
        """
        self._memory.tensors()  # for all blocks that the spans have
        pasts, counts, tables, images, shifts = zip(*spans, strict=True)
        past = np.array(pasts, np.int32)
        if len(token_ids) == len(spans):
            lengths = past + 1
        else:
            lengths = np.concatenate(
                [np.arange(s.past + 1, s.past + s.tokens + 1, dtype=np.int32) for s in spans]
            )
        held = list(map(len, tables))
        blocks = np.fromiter(chain.from_iterable(tables), np.int32, sum(held))
        assert self._tokens is not None
        self._write(self._tokens, token_ids[:, None])
        positions = lengths
        if self._images is not None:
            for name, rows in self._images.of(token_ids, counts, images).items():
                self._write(name, rows)
            if self._images.has_axes:
                each = map(np.broadcast_to, shifts, counts)
                positions = lengths + np.concatenate(list(each)).astype(np.int32)
        if self._lengths is not None:
            self._write(self._lengths, positions)
        empty = [0] * (self._threads - len(spans))
        self._write(PAST_LENS, np.array([*pasts, *empty], np.int32))
        self._write(BEGINS, _begins([*counts, *empty]))
        self._write(BLOCKS, blocks)
        self._write(BLOCK_BEGINS, _begins([*held, *empty]))
        multiples = -(-int(lengths.max()) // LONGEST_MULTIPLE)
        self._write(LONGEST, np.int32(multiples * LONGEST_MULTIPLE))
        self._write(SCORED, scored)
        if not self.is_current:
            for name, tensor in self._memory.inputs().items():
                self._request.set_tensor(name, tensor)
            self._version = self._memory.version
        try:
            run_request(self._request)
        except RuntimeError:
            self.has_failed = True
            raise

    def outputs(self) -> tuple[NDArray[np.float32], Candidates]:
        """(M, V) logits, valid until the next call, and the best tokens of each."""
        logits, token_ids, log_probs = (
            self._request.get_output_tensor(index).data for index in range(3)
        )
        return logits, Candidates(token_ids.copy(), log_probs.copy())

    def _write(self, name: str, values: Any) -> None:
        """Writes an input; memory is bound again only where its shape changes."""
        held = self._arrays.get(name)
        if held is not None and held.shape == np.shape(values):
            held[...] = values
        elif name in self._names:
            self._bind(name, np.array(values))

    def _bind(self, name: str, array: NDArray[Any]) -> None:
        """Binds an array as an input; shares its memory."""
        self._arrays[name] = array
        self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))


def _begins(counts: Any) -> NDArray[np.int32]:
    """(n,) counts → (n + 1,) where each begins, and their sum."""
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins


SOURCE_MULTIPLE = 16
"""Texts are encoded in such lengths: OpenVINO 2026.4 adds up the attention of other lengths in
another order, and a source's bits would depend on the longest one beside it."""
QUANTISATION_GROUPS = (128, 64)
"""Activations that share a scale, in graphs with weights of 8 or 4 bits: the first that has no
more inputs than each of their products (D99). OpenVINO 2026.4 computes a narrower product in
float32, and its bits then depend on the number of rows."""
_DEQUANTISATION = ("Transpose", "Reshape", "Multiply", "Subtract", "Convert")


class CompiledDecoder:
    """The graphs of one bundle, compiled, and the memory behind block numbers. One call at a time.

    Args:
        threads: Of each call; 0 leaves the choice to OpenVINO.
        spare_bytes: Bound on released buffers of sources, and on vectors of images, that are kept
            for reuse.

    Attributes:
        memory: Of the blocks of all sequences.
        held: States of sources; () where what `admit` returns is that of a prompt's images.
        images: Where prompts hold images.
        source_inputs: Inputs of `step` that belong to sources.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(self, bundle: Bundle, threads: int, spare_bytes: int) -> None:
        self.manifest = manifest = bundle.manifest
        self.vocabulary_size = _check_manifest(manifest)
        kept = spare_bytes // 2 if manifest.images else 0
        self.buffers = BufferPool(CpuDevice(), spare_bytes - kept)
        self.images = None
        if manifest.images is not None:
            self.images = ImageEncoder(manifest, lambda feeds: self.run("admit", feeds), kept)
        is_held = Growth.HOLD if self.images is None else None
        self.held = tuple(each for each in manifest.states if each.growth is is_held)
        sources = (port.name for port in manifest.graphs["step"].inputs if port.role is Role.SOURCE)
        self.source_inputs = [*sources, *(state.step_input for state in self.held)]
        if self.images is not None:
            self.source_inputs = []
        self._bundle, self._threads = bundle, threads
        self._precision = manifest.precision
        step = paged_graph(self._read("step"), manifest)
        self._step = self._compile(add_token_choice(step, self.vocabulary_size))
        self._requests: dict[str, Any] = {}
        if "admit" in manifest.graphs:
            self._requests["admit"] = self._compile(self._read("admit")).create_infer_request()
        self.memory = BlockMemory(self._step)
        self._idle: list[DecoderCall] = []

    def held_state(self, width: int) -> GroupState:
        """The states of a group's sources; empty where the model has none."""
        return GroupState(self.held, width, self.buffers)

    def encode(self, prompts: Sequence[Prompt]) -> dict[str, NDArray[np.float32]]:
        """What `step` reads of the prompts' sources, by the names of `admit`; {} without one.

        The arrays are valid until the next call.
        """
        graph = self.manifest.graphs.get("admit")
        if graph is None or self.images is not None:
            return {}
        feeds = {each.name: source_input(each, prompts) for each in graph.inputs}
        tokens = graph.input(Role.SOURCE_TOKENS)
        if tokens is None:
            return self.run("admit", feeds)
        longest = feeds[tokens.name].shape[1]
        padding = -longest % SOURCE_MULTIPLE
        feeds[tokens.name] = np.pad(feeds[tokens.name], [(0, 0), (0, padding)])
        found = self.run("admit", feeds)
        axes = {each.admit_output: each.shape.index("S") for each in self.held}
        return {
            name: value[(*[slice(None)] * axes[name], slice(longest))]
            for name, value in found.items()
        }

    def run(self, key: str, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of `admit` or `align` by name, valid until the next call."""
        if key not in self._requests:
            self._requests[key] = self._compile(self._read(key)).create_infer_request()
        request = self._requests[key]
        run_request(request, feeds)
        names = [port.name for port in self.manifest.graphs[key].outputs]
        return {name: request.get_tensor(name).data for name in names}

    def call(self) -> DecoderCall:
        """An unused call; given back by `release`."""
        self._idle = [each for each in self._idle if each.is_current]
        if self._idle:
            return self._idle.pop()
        return DecoderCall(self._step, self.manifest, self.memory)

    def release(self, call: DecoderCall) -> None:
        """Takes a call back; one that has failed is dropped.

        An infer request of OpenVINO that failed at a shape refuses further shapes.
        """
        call.forget(self.source_inputs)
        if not call.has_failed:
            self._idle.append(call)

    def candidates(self, call: DecoderCall, row_requests: Sequence[CandidateRequest]) -> Candidates:
        """Candidates of a call's scored tokens, each after its own edit."""
        return complete_choice(*call.outputs(), self.rank, row_requests)

    def rank(
        self, logits: NDArray[np.float32], count: int, temperatures: NDArray[np.float32] | None
    ) -> Candidates:
        """The best of each row, for rows that need more than the graph has chosen."""
        return self._topk.rank(logits, count, temperatures)

    def trim(self) -> None:
        """Frees memory kept for speed alone, the blocks' too while none is held."""
        self.buffers.clear()
        self._idle.clear()
        self.memory.trim()

    def close(self) -> None:
        """Frees graphs and memory."""
        self.trim()
        self._requests.clear()
        del self._step
        self.__dict__.pop("_topk", None)

    @cached_property
    def _topk(self) -> TopK:
        return TopK(session_options(self._threads), self.vocabulary_size, CpuDevice())

    def _read(self, graph: str) -> openvino.Model:
        path = self._bundle.path(self.manifest.graphs[graph].file)
        try:
            return openvino_core().read_model(path)
        except RuntimeError as error:
            raise BundleError(f"OpenVINO cannot read {path.name}: {error}") from error

    def _compile(self, model: openvino.Model) -> Any:
        fuse_rotations(model)
        options = _options(self._threads) | _number_formats(self._precision, model)
        try:
            return openvino_core().compile_model(model, "CPU", options)
        except RuntimeError as error:
            name = self.manifest.name
            raise BundleError(f"OpenVINO cannot compile a graph of {name}: {error}") from error


def source_length(prompt: Prompt) -> int:
    """Tokens of a prompt's source; 0 without one, and for images, whose positions are fixed."""
    return 0 if prompt.source_ids is None else len(prompt.source_ids)


def quantisation_group(model: openvino.Model) -> int:
    """Activations that share a scale in a graph with integer weights."""
    least = min(_integer_inputs(model), default=QUANTISATION_GROUPS[-1])
    return next((size for size in QUANTISATION_GROUPS if size <= least), QUANTISATION_GROUPS[-1])


def _integer_inputs(model: openvino.Model) -> Iterator[int]:
    """Inputs of each product with integer weights."""
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        weight = node.input_value(1)
        is_turned = node.get_attributes()["transpose_b"]
        while weight.get_node().get_type_name() in _DEQUANTISATION:
            weight = weight.get_node().input_value(0)
        if weight.get_element_type().is_integral():
            yield node.input_value(1).get_partial_shape()[-1 if is_turned else -2].get_length()


def _options(threads: int) -> dict[str, Any]:
    """OpenVINO's properties, whatever the graph."""
    return {
        "INFERENCE_NUM_THREADS": thread_count(threads),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }


def _number_formats(precision: str, model: openvino.Model) -> dict[str, Any]:
    """Properties of a bundle's precision.

    Integer weights have activations in groups and caches of 8 bits, with scales of keys for each
    token: by default they are those of a block's channels, and each token that is written quantises
    the others of its block again.
    """
    if precision in INTEGER_PRECISIONS:
        return {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": quantisation_group(model),
            "KV_CACHE_PRECISION": "u8",
            "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        }
    kind = "bf16" if precision == "bf16" else "f32"
    return {
        "INFERENCE_PRECISION_HINT": kind,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "KV_CACHE_PRECISION": kind,
    }


def _check_manifest(manifest: Manifest) -> int:
    """The vocabulary's size of a manifest that this runner supports.

    Raises:
        BundleError: it is no generator, its states are of a kind that blocks cannot hold, or its
            precision needs another processor.
    """
    step = manifest.graphs.get("step")
    if step is None or manifest.vocabulary_size is None:
        raise BundleError(f"{manifest.name} has no step graph: it is not a generator")
    replaced = [each for each in manifest.states if each.growth is Growth.REPLACE]
    are_tokens = manifest.images is not None and any(e.counted_token is not None for e in replaced)
    reasons = {
        "its layers attend to images": manifest.images is not None and not are_tokens,
        "its decoder is recurrent": bool(replaced) and manifest.images is None,
        "its prompts are read in both directions": step.whole_prompts,
        "its images are read in both directions": step.whole_images,
        "its caches begin with an image": any(each.prefix for each in manifest.states),
        "its caches are int8 in the graph": any(
            each.growth is Growth.APPEND and each.dtype != "float32" for each in manifest.states
        ),
    }
    for cause, holds in reasons.items():
        if holds:
            raise BundleError(
                f"{manifest.name} cannot be decoded with OpenVINO, because {cause}: export it "
                "with --runtime onnxruntime"
            )
    reason = why_not_here(manifest.precision, is_generator=True)
    if reason is not None:
        raise BundleError(
            f"{manifest.name} cannot be decoded in {manifest.precision} with OpenVINO here: "
            f"{reason}, or serve it on a processor that has it"
        )
    return manifest.vocabulary_size
