"""The device of addresses over host memory: real numbers from the CPU provider, a card's rules.

Every copy is checked against the blocks it touches. A captured graph is replayed as a card replays
it: on the addresses and host values of its capture, whatever is bound by then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.engine.runners.cuda.device import AddressDevice
from inference.engine.runners.cuda.runtime import BlockCopies, DeviceOutOfMemory, Direction
from inference.engine.runners.cuda.tensors import GRAPH_LIMIT, AddressedTensor
from inference.engine.state.device import UNCAPTURED

_POISON = 0xAB


class HostRuntime:
    """What `inference.engine.runners.cuda.runtime.CudaRuntime` does, over host memory.

    Args:
        capacity_bytes: Of the device's memory.

    Attributes:
        copies: Number of copies by direction.
        batches: Number of batches of copies.
    """

    stream = 0

    def __init__(self, capacity_bytes: int = 1 << 30) -> None:
        self.copies: dict[Direction, int] = dict.fromkeys(Direction, 0)
        self.batches = 0
        self.capacity_bytes = capacity_bytes
        self._pinned, self._staged_bytes = np.full(1 << 12, _POISON, np.uint8), 0
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._freed: list[NDArray[np.uint8]] = []  # kept, so that a stale address is no crash

    @property
    def allocated_bytes(self) -> int:
        return sum(block.nbytes for block in self._blocks.values())

    def allocate(self, nbytes: int) -> int:
        if self.allocated_bytes + nbytes > self.capacity_bytes:
            raise DeviceOutOfMemory(f"{nbytes} bytes are more than are free")
        block = np.full(max(1, nbytes), _POISON, np.uint8)
        self._blocks[block.ctypes.data] = block
        return int(block.ctypes.data)

    def free(self, address: int) -> None:
        block = self._blocks.pop(address)
        block[:] = _POISON
        self._freed.append(block)

    def copy(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
        direction: Direction,
    ) -> None:
        assert 0 < width <= min(target_pitch, source_pitch)
        self.copies[direction] += 1
        if direction is not Direction.TO_HOST:
            self._check(target, target_pitch * (height - 1) + width)
        for line in range(height):
            ctypes.memmove(target + line * target_pitch, source + line * source_pitch, width)

    def copy_batch(self, copies: Sequence[BlockCopies]) -> None:
        """From the last to the first: what depends on the order is wrong."""
        self.batches += 1
        for each in reversed(copies):
            copies = zip(each.targets, each.sources, each.widths, strict=True)
            for target, source, width in reversed(list(copies)):
                to, of = (int(target), each.target_pitch), (int(source), each.source_pitch)
                self.copy(*to, *of, int(width), each.height, Direction.ON_DEVICE)

    def clear(self, target: int, pitch: int, width: int, height: int) -> None:
        assert 0 < width <= pitch
        self._check(target, pitch * (height - 1) + width)
        for line in range(height):
            ctypes.memset(target + line * pitch, 0, width)

    def stage(self, nbytes: int) -> NDArray[np.uint8] | None:
        if not nbytes or self._staged_bytes + nbytes > len(self._pinned):
            return None
        start, self._staged_bytes = self._staged_bytes, self._staged_bytes + nbytes
        return self._pinned[start : start + nbytes]

    def synchronize(self) -> None:
        self._staged_bytes = 0

    def memory(self) -> tuple[int, int]:
        return self.capacity_bytes - self.allocated_bytes, self.capacity_bytes

    def close(self) -> None:
        pass

    def _check(self, address: int, nbytes: int) -> None:
        """That an area lies in one live block."""
        assert any(
            start <= address and address + nbytes <= start + block.nbytes
            for start, block in self._blocks.items()
        ), f"{nbytes} bytes at {address:#x} are not allocated"


@dataclass(frozen=True)
class _Captured:
    """What a graph keeps of its capture: addresses, and values that were read on the host."""

    binding: onnxruntime.IOBinding
    host_values: list[tuple[NDArray[Any], NDArray[Any]]]


class HostDevice(AddressDevice):
    """See the module.

    Attributes:
        fetched: Shape and dtype of every tensor that was fetched.
        captured: Number of graphs captured.
        replayed: Number of runs that replayed one.
    """

    def __init__(self, capacity_bytes: int = 1 << 30, graph_limit: int = GRAPH_LIMIT) -> None:
        self.runtime = HostRuntime(capacity_bytes)
        super().__init__(self.runtime, "CPUExecutionProvider", "cpu", graph_limit=graph_limit)
        self.fetched: list[tuple[tuple[int, ...], str]] = []
        self.captured = self.replayed = 0
        self._graphs: dict[tuple[onnxruntime.InferenceSession, int], _Captured] = {}
        self._host_values: dict[int, list[NDArray[Any]]] = {}
        self._bindings: list[onnxruntime.IOBinding] = []  # so that an id stands for one of them

    def fetch_all(self, tensors: Sequence[AddressedTensor]) -> list[NDArray[Any]]:
        self.fetched += [(tensor.shape, tensor.dtype) for tensor in tensors]
        return super().fetch_all(tensors)

    def bind_host_value(
        self, binding: onnxruntime.IOBinding, name: str, value: NDArray[Any]
    ) -> None:
        super().bind_host_value(binding, name, value)
        self._bindings.append(binding)
        self._host_values.setdefault(id(binding), []).append(value)

    def run_bound(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        graph_id: int = UNCAPTURED,
    ) -> None:
        if graph_id == UNCAPTURED:
            session.run_with_iobinding(binding)
            return
        key = session, graph_id  # keeps it alive: its number could be given to another
        if key not in self._graphs:
            self.captured += 1
            values = self._host_values.get(id(binding), [])
            self._graphs[key] = _Captured(binding, [(value, value.copy()) for value in values])
        else:
            self.replayed += 1
        graph = self._graphs[key]
        for value, frozen in graph.host_values:
            value[...] = frozen
        session.run_with_iobinding(graph.binding)
