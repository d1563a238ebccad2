"""Device memory as addresses, and which captured graph belongs to which.

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
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype
from inference.engine.runners.cuda.row_copies import batches
from inference.engine.runners.cuda.runtime import CudaRuntime, Direction
from inference.engine.state.device import EntryCopies, item_bytes

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


class AddressMemory:
    """Device memory behind the `Device` interface: what `HostMemory` is to numpy arrays.

    Args:
        runtime: Allocates and copies.
    """

    is_host = False
    keeps_addresses = True

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime, self._memory = runtime, Memory(runtime)

    def allocate(self, size: int, dtype: Dtype) -> AddressedTensor:
        """See `Device.allocate`.

        Raises:
            DeviceOutOfMemory: there is too little.
        """
        nbytes = size * item_bytes(dtype)
        if not nbytes:  # an empty arena must not fail where memory is short
            return AddressedTensor(None, 0, (size,), dtype)
        block = self._memory.block(nbytes)
        self._runtime.clear(block.address, nbytes, nbytes, 1)
        return AddressedTensor(block, block.address, (size,), dtype)

    def view(self, buffer: Any, shape: tuple[int, ...]) -> AddressedTensor:
        """See `Device.view`."""
        assert len(buffer.shape) == 1
        assert prod(shape) <= buffer.shape[0]
        return AddressedTensor(buffer.owner, buffer.address, shape, buffer.dtype)

    def entries(self, tensor: Any, start: int, stop: int) -> AddressedTensor:
        """See `Device.entries`."""
        assert 0 <= start <= stop <= tensor.shape[0]
        address, shape = (
            tensor.address + start * tensor.stride(0),
            (stop - start, *tensor.shape[1:]),
        )
        return AddressedTensor(tensor.owner, address, shape, tensor.dtype)

    def copy(
        self,
        source: Any,
        target: Any,
        *,
        axis: int | None = None,
        length: int = 0,
        source_start: int = 0,
        target_start: int = 0,
    ) -> None:
        """See `Device.copy`. One call: a line is the positions of one head of one entry."""
        assert source.dtype == target.dtype
        if axis is None:
            assert source.shape == target.shape
            self._move(target.address, source.address, target.nbytes, Direction.ON_DEVICE)
            return
        assert source.shape[:axis] == target.shape[:axis]
        assert source.shape[axis + 1 :] == target.shape[axis + 1 :]
        assert source_start + length <= source.shape[axis]
        assert target_start + length <= target.shape[axis]
        step, lines = target.stride(axis), prod(target.shape[:axis])
        if length and lines:
            self._runtime.copy(
                target.address + target_start * step,
                target.shape[axis] * step,
                source.address + source_start * step,
                source.shape[axis] * step,
                length * step,
                lines,
                Direction.ON_DEVICE,
            )

    def copy_entries(self, *jobs: EntryCopies) -> None:
        """See `Device.copy_entries`. One call for all jobs, unless pairs depend on each other."""
        for batch in batches(jobs):
            self._runtime.copy_batch(batch)

    def zero(self, tensor: Any, *, axis: int | None = None, start: int = 0) -> None:
        """See `Device.zero`."""
        if axis is None:
            axis, start = 0, 0
        step, lines = tensor.stride(axis), prod(tensor.shape[:axis])
        pitch, width = tensor.shape[axis] * step, (tensor.shape[axis] - start) * step
        if width and lines:
            self._runtime.clear(tensor.address + start * step, pitch, width, lines)

    def upload(self, values: NDArray[Any], target: Any) -> None:
        """See `Device.upload`."""
        assert (values.shape, str(values.dtype)) == (target.shape, target.dtype)
        held = np.ascontiguousarray(values)
        staged = self._runtime.stage(held.nbytes)
        if staged is not None:
            staged[:] = held.reshape(-1).view(np.uint8)
            held = staged
        self._move(target.address, held.ctypes.data, held.nbytes, Direction.TO_DEVICE)

    def fetch(self, tensor: Any) -> NDArray[Any]:
        """See `Device.fetch`; bfloat16 as float32. Waits for the device."""
        return self.fetch_all([tensor])[0]

    def fetch_all(self, tensors: Sequence[Any]) -> list[NDArray[Any]]:
        """See `CpuDevice.fetch_all`. Waits for the device once."""
        copied: list[NDArray[np.uint8]] = []
        for tensor in tensors:
            staged = self._runtime.stage(tensor.nbytes)
            copied.append(np.empty(tensor.nbytes, np.uint8) if staged is None else staged)
            self._move(copied[-1].ctypes.data, tensor.address, tensor.nbytes, Direction.TO_HOST)
        self._runtime.synchronize()
        return [_as_array(part, each) for part, each in zip(copied, tensors, strict=True)]

    def trim(self) -> None:
        """Frees memory kept for speed alone."""
        self._memory.trim()

    def _move(self, target: int, source: int, nbytes: int, direction: Direction) -> None:
        if nbytes:
            self._runtime.copy(target, nbytes, source, nbytes, nbytes, 1, direction)


def _as_array(fetched: NDArray[np.uint8], tensor: Any) -> NDArray[Any]:
    """The bytes of a tensor as an array of its own."""
    if tensor.dtype != "bfloat16":
        array: NDArray[Any] = fetched.view(tensor.dtype).reshape(tensor.shape)
        return array.copy()
    bits = fetched.view(np.uint16).reshape(tensor.shape).astype(np.uint32)
    return (bits << 16).view(np.float32)


UNCAPTURED = -1
"""The id with which ONNX Runtime runs node by node."""

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
