"""Tensors as addresses in a device's memory, and the memory that they lie in."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from inference.bundle.manifest import Dtype
from inference.engine.runners.cuda.runtime import CudaRuntime
from inference.engine.state.device import item_bytes

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
