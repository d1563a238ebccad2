"""What all groups of a model share: its compiled graphs, and the memory of its blocks.

Legend: B sequences, R rows, N tokens of a call, M of them that are scored, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Growth, Manifest, Role
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.openvino.paged_graph import (
    BEGINS,
    BLOCK_BEGINS,
    BLOCKS,
    LONGEST,
    PAST_LENS,
    SCORED,
    paged_graph,
)
from inference.engine.runners.openvino.token_choice import add_token_choice
from inference.engine.runners.ort.admission import source_input
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.runners.ort.sessions import session_options
from inference.engine.runners.ort.topk_graph import TopK
from inference.engine.runners.protocol import Prompt
from inference.engine.state.block_pool import BlockPool
from inference.engine.state.buffer_pool import BufferPool
from inference.engine.state.group_state import GroupState
from inference.errors import BundleError

LEAST_THREADS = 2
"""With one thread OpenVINO 2026.4 loses errors of a run and returns the previous run's results."""
SOURCE_MULTIPLE = 16
"""Texts are encoded in such lengths: OpenVINO 2026.4 adds up the attention of other lengths in
another order, and a source's bits would depend on the longest one beside it."""
QUANTISATION_GROUP = 64
"""Activations that share a scale, in graphs with int8 weights."""


@dataclass(frozen=True)
class Span:
    """The new tokens of one row in a call.

    Attributes:
        past: Positions that are in the row's blocks.
        tokens: New ones, at least one.
        blocks: Of the row, with room for the new tokens.
    """

    past: int
    tokens: int
    blocks: Sequence[int]


class CompiledDecoder:
    """The graphs of one bundle, compiled, and the memory behind block numbers. One call at a time.

    Args:
        threads: Of each call; 0 leaves the choice to OpenVINO.
        spare_bytes: Bound on released buffers of sources that are kept for reuse.

    Attributes:
        pool: Numbers of blocks.
        threads: Of each call.
        source_inputs: Inputs of `step` that belong to sources.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(self, bundle: Bundle, threads: int, spare_bytes: int) -> None:
        self.manifest = manifest = bundle.manifest
        self.vocabulary_size = _checked(manifest)
        self.buffers = BufferPool(CpuDevice(), spare_bytes)
        self._held = tuple(each for each in manifest.states if each.growth is Growth.HOLD)
        self.source_inputs = [
            port.name for port in manifest.graphs["step"].inputs if port.role is Role.SOURCE
        ] + [state.step_input for state in self._held]
        self._bundle, self._threads = bundle, threads
        self._core = openvino.Core()
        self._options = _options(threads, is_int8="int8" in manifest.precision)
        step = paged_graph(self._read("step"), manifest)
        self._step = self._compile(add_token_choice(step, self.vocabulary_size))
        self._requests: dict[str, Any] = {}
        if "admit" in manifest.graphs:
            self._requests["admit"] = self._compile(self._read("admit")).create_infer_request()
        shapes = {
            port.any_name: ([size.get_length() for size in list(port.partial_shape)[1:]], port)
            for port in self._step.inputs
            if "_cache." in port.any_name
        }
        self._shapes = {name: shape for name, (shape, _) in shapes.items()}
        self._types = {name: port.element_type for name, (_, port) in shapes.items()}
        block_bytes = sum(
            prod(shape) * self._types[name].size for name, shape in self._shapes.items()
        )
        self.threads: int = self._step.get_property("INFERENCE_NUM_THREADS")
        self.pool = BlockPool(_block_tokens(self._shapes), block_bytes)
        self._caches: dict[str, NDArray[Any]] = {}
        self._idle: list[DecoderCall] = []
        self._resize_caches(0)

    @property
    def cache_bytes(self) -> int:
        """Bytes of all blocks that have numbers."""
        held = len(next(iter(self._caches.values()))) - 1
        return held * self.pool.block_bytes

    def held_state(self, width: int) -> GroupState:
        """The states of a group's sources; empty where the model has none."""
        return GroupState(self._held, width, self.buffers)

    def encode(self, prompts: Sequence[Prompt]) -> dict[str, NDArray[np.float32]]:
        """What `step` reads of the prompts' sources, by the names of `admit`; {} without one.

        The arrays are valid until the next call.
        """
        graph = self.manifest.graphs.get("admit")
        if graph is None:
            return {}
        feeds = {each.name: source_input(each, prompts) for each in graph.inputs}
        tokens = graph.input(Role.SOURCE_TOKENS)
        if tokens is None:
            return self.run("admit", feeds)
        longest = feeds[tokens.name].shape[1]
        padding = -longest % SOURCE_MULTIPLE
        feeds[tokens.name] = np.pad(feeds[tokens.name], [(0, 0), (0, padding)])
        found = self.run("admit", feeds)
        axes = {each.admit_output: each.shape.index("S") for each in self._held}
        return {
            name: value[(*[slice(None)] * axes[name], slice(longest))]
            for name, value in found.items()
        }

    def run(self, key: str, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of `admit` or `align` by name, valid until the next call."""
        if key not in self._requests:
            self._requests[key] = self._compile(self._read(key)).create_infer_request()
        found = self._requests[key].infer(dict(feeds), share_inputs=True, share_outputs=True)
        return {port.name: found[port.name] for port in self.manifest.graphs[key].outputs}

    def align(self, prompt: Prompt, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Attention of (T,) tokens to the source, (T, S), by the graph `align`."""
        graph = self.manifest.graphs["align"]
        feeds = {
            tensor.name: token_ids[None]
            if tensor.role is Role.TOKENS
            else source_input(tensor, [prompt])
            for tensor in graph.inputs
        }
        (weights,) = self.run("align", feeds).values()
        alignment: NDArray[np.float32] = weights[0].copy()
        return alignment

    def call(self) -> DecoderCall:
        """An unused call; given back by `release`."""
        return self._idle.pop() if self._idle else DecoderCall(self, self._step)

    def release(self, call: DecoderCall) -> None:
        """Takes a call back; one that has failed is dropped.

        An infer request of OpenVINO that failed at a shape refuses further shapes.
        """
        call.unbind_sources()
        if not call.has_failed:
            self._idle.append(call)

    def caches(self) -> Mapping[str, NDArray[Any]]:
        """The memory of all blocks that the pool has handed out, by the names of the inputs."""
        if len(self.pool) >= len(next(iter(self._caches.values()))):
            self._resize_caches(len(self.pool))
        return self._caches

    def tensor(self, name: str, cache: NDArray[Any]) -> openvino.Tensor:
        """A cache as an input; shares its memory."""
        return openvino.Tensor(cache, openvino.Shape(cache.shape), self._types[name])

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks; no target is a source."""
        for cache in self.caches().values():
            for source, target in zip(sources, targets, strict=True):
                cache[target] = cache[source]

    def rank(
        self, logits: NDArray[np.float32], count: int, temperatures: NDArray[np.float32] | None
    ) -> Candidates:
        """The best of each row, for rows that need more than the graph has chosen."""
        return self._topk.rank(logits, count, temperatures)

    def trim(self) -> None:
        """Frees memory kept for speed alone, the blocks' too while none is held."""
        self.buffers.clear()
        self._idle.clear()
        if not self.pool.used:
            self.pool.reset()
            self._resize_caches(0)

    def close(self) -> None:
        """Frees graphs and memory."""
        self.trim()
        self._caches.clear()
        self._requests.clear()
        del self._step
        self.__dict__.pop("_topk", None)

    @cached_property
    def _topk(self) -> TopK:
        return TopK(session_options(self._threads), self.vocabulary_size, CpuDevice())

    def _resize_caches(self, blocks: int) -> None:
        """Moves all blocks to memory for so many; pages that are never touched take none.

        One more is for rows that only pad a call.
        """
        self._idle.clear()  # they are bound to the memory of before
        for name, shape in self._shapes.items():
            grown = np.zeros((blocks + 1, *shape), self._types[name].to_dtype())
            if name in self._caches and blocks:
                grown[: len(self._caches[name])] = self._caches[name]
            self._caches[name] = grown

    def _read(self, graph: str) -> openvino.Model:
        path = self._bundle.path(self.manifest.graphs[graph].file)
        try:
            return self._core.read_model(path)
        except RuntimeError as error:
            raise BundleError(f"OpenVINO cannot read {path.name}: {error}") from error

    def _compile(self, model: openvino.Model) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._options)
        except RuntimeError as error:
            name = self.manifest.name
            raise BundleError(f"OpenVINO cannot compile a graph of {name}: {error}") from error


class DecoderCall:
    """One infer request of `step`, with its inputs bound; belongs to one group at a time.

    Attributes:
        has_failed: Whether a run has raised.
    """

    def __init__(self, decoder: CompiledDecoder, step: Any) -> None:
        self.has_failed = False
        self._decoder = decoder
        self._request = step.create_infer_request()
        self._names = {name for port in step.inputs for name in port.names}
        graph = decoder.manifest.graphs["step"]
        self._tokens, self._lengths, self._source = (
            None if port is None else port.name
            for port in map(graph.input, (Role.TOKENS, Role.LENGTHS, Role.SOURCE))
        )
        self._arrays: dict[str, NDArray[Any]] = {}
        self._caches: dict[str, NDArray[Any]] = {}

    def bind_sources(self, state: GroupState, slots: slice) -> None:
        """Binds what `step` reads of the sources of some slots, until they move."""
        for arena in state.of(Growth.HOLD):
            self._bind(
                arena.state.step_input, self._decoder.buffers.device.fetch(arena.view(slots))
            )
        if self._source is not None:
            self._write(self._source, np.array(state.source_lengths[slots], np.int32))

    def bind(self, sources: Mapping[str, NDArray[Any]]) -> None:
        """Binds inputs that belong to sources, by name."""
        for name, array in sources.items():
            self._bind(name, array)

    def unbind_sources(self) -> None:
        """Forgets the addresses of sources."""
        for name in self._decoder.source_inputs:
            self._arrays.pop(name, None)

    def run(
        self,
        token_ids: NDArray[np.int64],
        spans: Sequence[Span],
        scored: NDArray[np.int64],
        sequences: int = 1,
    ) -> None:
        """One call.

        Args:
            token_ids: (N,) new tokens of all rows, row after row.
            spans: Of each row.
            scored: (M,) indices in N.
            sequences: Whose sources are bound; 1 where the model has none.
        """
        if len(spans) < self._decoder.threads:
            token_ids, spans, scored = self._pad(token_ids, spans, scored, sequences)
        past = np.array([span.past for span in spans], np.int32)
        counts = np.array([span.tokens for span in spans], np.int32)
        if len(token_ids) == len(spans):
            lengths = past + 1
        else:
            lengths = np.concatenate(
                [np.arange(s.past + 1, s.past + s.tokens + 1, dtype=np.int32) for s in spans]
            )
        held = [len(span.blocks) for span in spans]
        blocks = np.fromiter(chain.from_iterable(s.blocks for s in spans), np.int32, sum(held))
        assert self._tokens is not None
        self._write(self._tokens, token_ids[:, None])
        if self._lengths is not None:
            self._write(self._lengths, lengths)
        self._write(PAST_LENS, past)
        self._write(BEGINS, _begins(counts))
        self._write(BLOCKS, blocks)
        self._write(BLOCK_BEGINS, _begins(held))
        self._write(LONGEST, (past + counts).max())
        self._write(SCORED, scored)
        self._bind_caches()
        try:
            self._request.infer(share_outputs=True)
        except RuntimeError:
            self.has_failed = True
            raise

    def _pad(
        self,
        token_ids: NDArray[np.int64],
        spans: Sequence[Span],
        scored: NDArray[np.int64],
        sequences: int,
    ) -> tuple[NDArray[np.int64], Sequence[Span], NDArray[np.int64]]:
        """Adds a row without a past behind the rows of each sequence.

        Where there are fewer rows than threads, OpenVINO 2026.4 divides the positions of a row
        among threads, and adds up their results: other bits than those of a row in a larger batch.
        It does not where a row has several new tokens.
        """
        caches = self._decoder.caches()
        scratch = [len(next(iter(caches.values()))) - 1]
        width = len(spans) // sequences
        is_enough = sequences * (width + 1) >= self._decoder.threads
        added = Span(0, 1 if is_enough else 2, scratch)
        padded: list[Span] = []
        places: list[int] = []
        start = 0
        for first in range(0, len(spans), width):
            padded += [*spans[first : first + width], added]
            for span in spans[first : first + width]:
                places += range(start, start + span.tokens)
                start += span.tokens
            start += added.tokens
        tokens, kept = np.zeros(start, np.int64), np.array(places)
        tokens[kept] = token_ids
        return tokens, padded, kept[scored]

    def outputs(self) -> tuple[NDArray[np.float32], Candidates]:
        """(M, V) logits, valid until the next call, and the best tokens of each."""
        logits, token_ids, log_probs = (
            self._request.get_output_tensor(index).data for index in range(3)
        )
        return logits, Candidates(token_ids.copy(), log_probs.copy())

    def _bind_caches(self) -> None:
        for name, cache in self._decoder.caches().items():
            if self._caches.get(name) is not cache:
                self._request.set_tensor(name, self._decoder.tensor(name, cache))
                self._caches[name] = cache

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


def source_length(prompt: Prompt) -> int:
    """Tokens of a prompt's source; 0 without one, and for images, whose positions are fixed."""
    return 0 if prompt.source_ids is None else len(prompt.source_ids)


def _begins(counts: Any) -> NDArray[np.int32]:
    """(n,) counts → (n + 1,) where each begins, and their sum."""
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins


def _options(threads: int, *, is_int8: bool) -> dict[str, Any]:
    """OpenVINO's properties: int8 weights have activations in groups and caches of 8 bits."""
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": max(LEAST_THREADS, threads) if threads else 0,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": QUANTISATION_GROUP if is_int8 else 0,
        "KV_CACHE_PRECISION": "u8" if is_int8 else "f32",
    }
    return options


def _block_tokens(shapes: Mapping[str, Sequence[int]]) -> int:
    """Positions of a block. Values of 8 bits have their scales behind each position."""
    return next(shape[1] for name, shape in shapes.items() if name.startswith("value"))


def _checked(manifest: Manifest) -> int:
    """The vocabulary's size of a manifest that this runner supports.

    Raises:
        BundleError: it is no generator, or its states are of a kind that blocks cannot hold.
    """
    step = manifest.graphs.get("step")
    if step is None or manifest.vocabulary_size is None:
        raise BundleError(f"{manifest.name} has no step graph: it is not a generator")
    reasons = {
        "its decoder is recurrent": any(each.growth is Growth.REPLACE for each in manifest.states),
        "its caches begin with an image": any(each.prefix for each in manifest.states),
        "its prompts hold images": manifest.images is not None,
        "its caches are int8 in the graph": any(
            each.growth is Growth.APPEND and each.dtype != "float32" for each in manifest.states
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise BundleError(
                f"{manifest.name} cannot be decoded with OpenVINO, because {reason}: export it "
                "with --runtime onnxruntime"
            )
    return manifest.vocabulary_size
