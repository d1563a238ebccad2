"""The CUDA runtime through ctypes: memory, copies and one stream. No kernels of our own."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from enum import IntEnum
from typing import Any, Protocol

from serving.errors import DeviceError

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
_PROPERTIES_BYTES = 1 << 14  # more than `cudaDeviceProp` of any version
_COPY_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
)
_NON_BLOCKING = 1  # a stream that does not wait for the default stream
_OUT_OF_MEMORY = 2


class Direction(IntEnum):
    """`cudaMemcpyKind`."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


class DeviceOutOfMemory(MemoryError):
    """The device has no room for an allocation."""


class Runtime(Protocol):
    """What a device of addresses needs of a driver. Copies are ordered on one stream."""

    stream: int
    """Handle of the stream, for ONNX Runtime."""

    def allocate(self, nbytes: int) -> int:
        """Address of new memory, not initialised.

        Raises:
            DeviceOutOfMemory: there is too little.
        """
        ...

    def free(self, address: int) -> None:
        """Frees what `allocate` returned, once the stream does not use it any more."""
        ...

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

        Host memory that is read may be reused at once; host memory that is written is complete
        after `synchronize`.
        """
        ...

    def clear(self, target: int, pitch: int, width: int, height: int) -> None:
        """Sets lines to zero."""
        ...

    def synchronize(self) -> None:
        """Waits for the stream."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        ...

    def close(self) -> None:
        """Destroys the stream."""
        ...


class CudaRuntime:
    """libcudart of one card; see `Runtime`.

    Args:
        number: Of the card.

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
        self._copy.argtypes = _COPY_ARGUMENTS  # converted once: a beam step has hundreds of copies

    @property
    def name(self) -> str:
        """The card's."""
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)  # begins with the name
        read = getattr(self._library, "cudaGetDeviceProperties_v2", None)  # of CUDA 12
        status = (read or self._library.cudaGetDeviceProperties)(properties, self._number)
        self._check("cudaGetDeviceProperties", status)
        return properties.value.decode()

    def allocate(self, nbytes: int) -> int:
        """See `Runtime.allocate`."""
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
        """See `Runtime.free`; waits for the card."""
        self._call("cudaFree", ctypes.c_void_p(address))

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
        """See `Runtime.copy`. Host memory is pageable: CUDA stages it before it returns."""
        status = self._copy(
            target, target_pitch, source, source_pitch, width, height, direction, self.stream
        )
        if status:
            self._check("cudaMemcpy2DAsync", status)

    def clear(self, target: int, pitch: int, width: int, height: int) -> None:
        """See `Runtime.clear`."""
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
        """See `Runtime.synchronize`."""
        self._call("cudaStreamSynchronize", self._stream)

    def memory(self) -> tuple[int, int]:
        """See `Runtime.memory`."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def close(self) -> None:
        """See `Runtime.close`."""
        self._call("cudaStreamDestroy", self._stream)

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
