"""The CUDA runtime through ctypes: memory, copies and one stream. No kernels of our own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import DeviceError

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
_PROPERTIES_BYTES = 1 << 14  # more than `cudaDeviceProp` of any version
_COPY_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
)
_BATCHES_SINCE = 13000
_POINTER = 1  # cudaMemcpyOperandTypePointer
_STREAM_ORDER = 1  # cudaMemcpySrcAccessOrderStream
_OPERATION = np.dtype(  # cudaMemcpy3DBatchOp; lengths are in bytes
    [
        *(("source_kind", "i8"), ("source", "u8"), ("source_pitch", "u8"), ("_1", "u8", 2)),
        *(("target_kind", "i8"), ("target", "u8"), ("target_pitch", "u8"), ("_2", "u8", 2)),
        *(("width", "u8"), ("height", "u8"), ("depth", "u8"), ("order", "i4"), ("_3", "u4")),
    ]
)
_STAGED_BYTES = 1 << 20
_ALIGNED_BYTES = 64
_NON_BLOCKING = 1  # a stream that does not wait for the default stream
_OUT_OF_MEMORY = 2


class Direction(IntEnum):
    """`cudaMemcpyKind`."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


class DeviceOutOfMemory(MemoryError):
    """The device has no room for an allocation."""


@dataclass(frozen=True, eq=False)
class BlockCopies:
    """Copies of `height` lines each, which begin a pitch apart.

    Attributes:
        targets: (copies,) addresses of the first lines.
        sources: (copies,) the same.
        widths: (copies,) bytes of a line.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    widths: NDArray[np.int64]
    target_pitch: int
    source_pitch: int
    height: int


class CudaRuntime:
    """libcudart of one card; copies are ordered on one stream.

    Tests of `AddressDevice` have another class with these methods, over host memory.

    Args:
        number: Of the card.

    Attributes:
        stream: Handle of the stream, for ONNX Runtime.

    Raises:
        DeviceError: no libcudart, no card, or no card of that number.
    """

    def __init__(self, number: int) -> None:
        self._library = _open_library()
        count = ctypes.c_int(0)
        status = self._library.cudaGetDeviceCount(ctypes.byref(count))
        if status or not count.value:
            raise DeviceError(f"CUDA finds no card: {self._text(status)}")
        if number >= count.value:
            raise DeviceError(f"there is no card {number}: CUDA finds {count.value}, from 0 on")
        self._call("cudaSetDevice", number)
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        self.stream = stream.value or 0
        self._stream, self._number = stream, number
        self._copy = self._library.cudaMemcpy2DAsync
        self._copy.argtypes = _COPY_ARGUMENTS
        version = ctypes.c_int(0)
        self._call("cudaRuntimeGetVersion", ctypes.byref(version))
        self._has_batches = version.value >= _BATCHES_SINCE
        self._pinned = ctypes.c_void_p()
        self._staged_bytes = 0

    @property
    def name(self) -> str:
        """The card's."""
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)  # begins with the name
        read = getattr(self._library, "cudaGetDeviceProperties_v2", None)  # of CUDA 12
        status = (read or self._library.cudaGetDeviceProperties)(properties, self._number)
        self._check("cudaGetDeviceProperties", status)
        return properties.value.decode()

    def allocate(self, nbytes: int) -> int:
        """Address of new memory, not initialised.

        Raises:
            DeviceOutOfMemory: there is too little.
        """
        address = ctypes.c_void_p()
        status = self._library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes))
        if status == _OUT_OF_MEMORY:
            self._library.cudaGetLastError()  # or the next call reports it again
            free, total = self.memory()
            raise DeviceOutOfMemory(
                f"{nbytes >> 20} MiB are needed, {free >> 20} of {total >> 20} MiB are free"
            )
        self._check("cudaMalloc", status)
        return address.value or 0

    def free(self, address: int) -> None:
        """Frees what `allocate` returned; waits for the card."""
        self._call("cudaFree", ctypes.c_void_p(address))

    def stage(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Page-locked host memory, whose copies need no second one in between (D70).

        It is used again after the next `synchronize`. None where too little is left until then.
        """
        if self._pinned.value is None:
            self._call("cudaMallocHost", ctypes.byref(self._pinned), ctypes.c_size_t(_STAGED_BYTES))
        start = self._staged_bytes
        if not nbytes or start + nbytes > _STAGED_BYTES:
            return None
        self._staged_bytes += -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        assert self._pinned.value is not None
        part = (ctypes.c_uint8 * nbytes).from_address(self._pinned.value + start)
        return np.ctypeslib.as_array(part)

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
        """Copies `height` lines of `width` bytes, which begin a pitch apart.

        Pageable host memory that is read may be reused at once (CUDA stages it); host memory that
        is written is complete after `synchronize`.
        """
        status = self._copy(
            target, target_pitch, source, source_pitch, width, height, direction, self.stream
        )
        if status:
            self._check("cudaMemcpy2DAsync", status)

    def copy_batch(self, copies: Sequence[BlockCopies]) -> None:
        """Copies on the device, in any order: none touches what another one writes.

        One call; before CUDA 13, whose signature it is, one a copy.
        """
        if not self._has_batches:
            for each in copies:
                for target, source, width in zip(
                    each.targets, each.sources, each.widths, strict=True
                ):
                    to, of = (int(target), each.target_pitch), (int(source), each.source_pitch)
                    self.copy(*to, *of, int(width), each.height, Direction.ON_DEVICE)
            return
        operations = np.zeros(sum(len(each.targets) for each in copies), _OPERATION)
        operations["target_kind"] = operations["source_kind"] = _POINTER
        operations["depth"], operations["order"] = 1, _STREAM_ORDER
        first = 0
        for each in copies:
            part = operations[first : first + len(each.targets)]
            part["target"], part["source"] = each.targets, each.sources
            part["target_pitch"], part["source_pitch"] = each.target_pitch, each.source_pitch
            part["width"], part["height"] = each.widths, each.height
            first += len(part)
        self._call(
            "cudaMemcpy3DBatchAsync",
            ctypes.c_size_t(len(operations)),
            ctypes.c_void_p(operations.ctypes.data),
            ctypes.c_ulonglong(0),
            self._stream,
        )

    def clear(self, target: int, pitch: int, width: int, height: int) -> None:
        """Sets lines to zero."""
        self._call(
            "cudaMemset2DAsync",
            ctypes.c_void_p(target),
            ctypes.c_size_t(pitch),
            0,
            ctypes.c_size_t(width),
            ctypes.c_size_t(height),
            self._stream,
        )

    def synchronize(self) -> None:
        """Waits for the stream."""
        self._call("cudaStreamSynchronize", self._stream)
        self._staged_bytes = 0

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def close(self) -> None:
        """Destroys the stream."""
        self._call("cudaStreamDestroy", self._stream)
        if self._pinned.value is not None:
            self._call("cudaFreeHost", self._pinned)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name} failed: {self._text(status)}")

    def _text(self, status: int) -> str:
        describe = self._library.cudaGetErrorString
        describe.restype = ctypes.c_char_p
        return str(describe(status).decode())


def _open_library() -> ctypes.CDLL:
    """libcudart: the one that ONNX Runtime has loaded, or the newest one found.

    Raises:
        DeviceError: there is none.
    """
    for mode in (os.RTLD_NOLOAD, 0):
        for name in _LIBRARIES:
            with suppress(OSError):
                return ctypes.CDLL(name, ctypes.DEFAULT_MODE | mode)
    raise DeviceError(
        f"{' or '.join(_LIBRARIES)} is missing: install the CUDA runtime (for onnxruntime-gpu: "
        "pip install onnxruntime-gpu[cuda,cudnn])"
    )
