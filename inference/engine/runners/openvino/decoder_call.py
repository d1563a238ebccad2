"""One call of a decoder: the new tokens of its rows, and the blocks that they are written to.

Legend: B sequences, R rows, N tokens of a call, M of them that are scored, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import openvino
from numpy.typing import NDArray

from inference.bundle.manifest import Growth, Manifest, Role
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.openvino.block_memory import BlockMemory
from inference.engine.runners.openvino.paged_graph import (
    BEGINS,
    BLOCK_BEGINS,
    BLOCKS,
    LONGEST,
    PAST_LENS,
    SCORED,
)
from inference.engine.runners.openvino.prompt_images import Arrays, ImageInputs, ImageRows
from inference.engine.state.group_state import GroupState
from inference.openvino_core import run_request

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
        self,
        token_ids: NDArray[np.int64],
        spans: Sequence[Span],
        scored: NDArray[np.int64],
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
                positions = lengths + _of_tokens(shifts, counts)
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


def _of_tokens(shifts: Sequence[Any], counts: Sequence[int]) -> NDArray[np.int32]:
    """The shifts of each token of a call, (N,) int32."""
    each = [np.broadcast_to(shift, count) for shift, count in zip(shifts, counts, strict=True)]
    found: NDArray[np.int32] = np.concatenate(each).astype(np.int32)
    return found


def _begins(counts: Any) -> NDArray[np.int32]:
    """(n,) counts → (n + 1,) where each begins, and their sum."""
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins
