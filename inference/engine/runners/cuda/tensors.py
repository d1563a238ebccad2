"""Device memory as addresses, copies of entries in it, and which captured graph belongs to which.

ONNX Runtime replays the graph that it captured under an id, on the addresses and host values of
that moment, whatever is bound now. So an id stands for one set of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np

from inference.bundle.manifest import Dtype
from inference.engine.runners.cuda.runtime import BlockCopies, CudaRuntime
from inference.engine.state.device import UNCAPTURED, DeviceTensor, EntryCopies, item_bytes

_SMALLEST_BLOCK = 512
_LARGEST_KEPT_BLOCK = 1 << 20
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, eq=False, slots=True)
class AddressedTensor:
    """A contiguous tensor. The host has no access to its elements.

    Attributes:
        owner: Frees the memory when it is garbage.
    """

    owner: Any
    address: int
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * item_bytes(self.dtype)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{self.dtype}{list(self.shape)} is on the device: fetch it")

    def __bool__(self) -> NoReturn:
        self.__array__()

    def stride(self, axis: int) -> int:
        """Bytes from one index to the next along an axis."""
        return prod(self.shape[axis + 1 :]) * item_bytes(self.dtype)


def as_addressed(tensor: DeviceTensor) -> AddressedTensor:
    """A tensor of a device of addresses."""
    assert isinstance(tensor, AddressedTensor)
    return tensor


def batches(jobs: Sequence[EntryCopies]) -> list[list[BlockCopies]]:
    """The jobs in batches: no copy touches what another one of its batch writes."""
    found: list[list[BlockCopies]] = []
    for job in jobs:
        if not job.pairs:
            continue
        source, target, axis = as_addressed(job.sources[0]), as_addressed(job.targets[0]), job.axis
        assert source.dtype == target.dtype
        if axis is None:  # an entry is one line
            assert source.shape[1:] == target.shape[1:]
            height, step = 1, target.stride(0)
            pitches, spans = (step, step), np.array([(0, 1)] * len(job.pairs))
        else:
            assert source.shape[1:axis] == target.shape[1:axis]
            assert source.shape[axis + 1 :] == target.shape[axis + 1 :]
            spans = np.array(job.spans)
            assert spans[:, 1].max(initial=0) <= min(source.shape[axis], target.shape[axis])
            height, step = prod(target.shape[1:axis]), target.stride(axis)
            pitches = target.shape[axis] * step, source.shape[axis] * step
        from_all = np.array([[as_addressed(each).address] for each in job.sources])
        to_all = np.array([[as_addressed(each).address] for each in job.targets])
        for index, part in enumerate(_split_independent(job.pairs)):
            if index == len(found):
                found.append([])
            read, written = np.array(job.pairs)[part].T
            assert read.max() < source.shape[0]
            assert written.max() < target.shape[0]
            start, stop = spans[part].T * step
            sources = from_all + read * source.stride(0) + start
            targets = to_all + written * target.stride(0) + start
            widths = np.broadcast_to(stop - start, targets.shape)
            kept = widths > 0
            made = BlockCopies(targets[kept], sources[kept], widths[kept], *pitches, height)
            found[index].append(made)
    return [batch for batch in found if any(len(each.widths) for each in batch)]


def _split_independent(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Indices of the pairs in parts, each as early as those that it depends on allow.

    In a part no entry is written that another pair reads or writes.
    """
    after_reading, after_writing = dict[int, int](), dict[int, int]()  # entry → the first part
    parts: list[list[int]] = []
    for number, (source, target) in enumerate(pairs):
        written = max(after_writing.get(source, 0), after_writing.get(target, 0))
        index = max(written, after_reading.get(target, 0))
        if index == len(parts):
            parts.append([])
        parts[index].append(number)
        after_writing[target] = index + 1
        after_reading[source] = max(after_reading.get(source, 0), index + 1)
    return parts


class Memory:
    """Allocates blocks; small ones are kept for the next call, because `cudaMalloc` waits.

    A freed block may be reused at once: all its uses are ordered on one stream.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._kept_bytes = 0

    def block(self, nbytes: int) -> Block:
        """Memory for so many bytes, not initialised.

        Raises:
            DeviceOutOfMemory: there is too little.
        """
        size = max(_SMALLEST_BLOCK, nbytes)
        if size <= _LARGEST_KEPT_BLOCK:
            size = 1 << (size - 1).bit_length()
        if self._free[size]:
            self._kept_bytes -= size
            return Block(self, self._free[size].pop(), size)
        return Block(self, self._runtime.allocate(size), size)

    def release(self, address: int, size: int) -> None:
        """Takes a block back."""
        if size <= _LARGEST_KEPT_BLOCK and self._kept_bytes + size <= _KEPT_BYTES:
            self._free[size].append(address)
            self._kept_bytes += size
        else:
            self._runtime.free(address)

    def trim(self) -> None:
        """Frees the blocks kept."""
        for blocks in self._free.values():
            while blocks:
                self._runtime.free(blocks.pop())
        self._kept_bytes = 0


class Block:
    """Memory that is released when the last tensor in it is garbage."""

    __slots__ = ("_memory", "_size", "address")

    def __init__(self, memory: Memory, address: int, size: int) -> None:
        self._memory, self._size = memory, size
        self.address = address

    def __del__(self) -> None:
        self._memory.release(self.address, self._size)


GRAPH_LIMIT = 192
"""Captured graphs of a session: layouts of rows and positions that recur are fewer."""
_RUNS_BEFORE_CAPTURE = 2
"""A capture takes three runs; most layouts of a group that is filling up last for fewer."""


class GraphIds:
    """Ids of one session's captured graphs. They are never released: ONNX Runtime cannot.

    Args:
        limit: Of captured graphs; what is bound beyond runs node by node.
    """

    def __init__(self, limit: int = GRAPH_LIMIT) -> None:
        self._limit = limit
        self._ids: dict[Hashable, int] = {}
        self._runs: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, bound: Hashable) -> int:
        """The id for a run; called once for each.

        Args:
            bound: Names, addresses and shapes of everything bound, and the values of host inputs.
        """
        known = self._ids.get(bound)
        if known is not None:
            return known
        runs = self._runs.get(bound, 0)
        if runs < _RUNS_BEFORE_CAPTURE or len(self._ids) >= self._limit:
            if len(self._runs) >= 4 * self._limit:
                self._runs.clear()
            self._runs[bound] = runs + 1
            return UNCAPTURED
        self._runs.pop(bound)
        self._ids[bound] = len(self._ids) + 1
        return self._ids[bound]
