"""A device over ONNX Runtime's CPU provider whose memory the host cannot access.

Buffers are `OrtValue`s behind handles without a numpy view; every access that is not one of the
device's operations raises. Operations are those of a driver (memcpy, memset on addresses), so code
that runs here does not depend on host memory. Fetches are recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.bundle import Dtype
from serving.engine.runners.ort.device import bind_host_input
from serving.engine.state.device import item_bytes


class HostAccess(AssertionError):
    """The host accessed device memory without a fetch."""


class OpaqueTensor:
    """Shape and dtype of a tensor without access to its elements."""

    __slots__ = ("__address", "__owner", "dtype", "shape")

    def __init__(
        self, owner: onnxruntime.OrtValue, address: int, shape: tuple[int, ...], dtype: str
    ) -> None:
        self.__owner, self.__address = owner, address
        self.shape, self.dtype = shape, dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * item_bytes(self.dtype)  # type: ignore[arg-type]

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise HostAccess(f"host access to {self.dtype}{list(self.shape)} on the device")

    __array__ = __getitem__ = __setitem__ = __len__ = __iter__ = __float__ = __int__ = _refuse
    __bool__ = __add__ = __sub__ = __mul__ = __lt__ = __gt__ = __buffer__ = __dlpack__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()


def _owner(tensor: OpaqueTensor) -> onnxruntime.OrtValue:
    return object.__getattribute__(tensor, "_OpaqueTensor__owner")


def _address(tensor: OpaqueTensor) -> int:
    return object.__getattribute__(tensor, "_OpaqueTensor__address")


class OpaqueDevice:
    """See `serving.engine.runners.ort.device.OrtDevice`.

    Attributes:
        fetched: Shape and dtype of every tensor that was fetched.
    """

    is_host = False
    provider = "CPUExecutionProvider"
    unsupported_dtypes: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.fetched: list[tuple[tuple[int, ...], str]] = []

    def allocate(self, size: int, dtype: Dtype) -> OpaqueTensor:
        nbytes = size * item_bytes(dtype)
        owner = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(1, nbytes)], np.uint8, "cpu")
        ctypes.memset(owner.data_ptr(), 0, nbytes)
        return OpaqueTensor(owner, owner.data_ptr(), (size,), dtype)

    def view(self, buffer: OpaqueTensor, shape: tuple[int, ...]) -> OpaqueTensor:
        assert len(buffer.shape) == 1
        assert prod(shape) <= buffer.shape[0]
        return OpaqueTensor(_owner(buffer), _address(buffer), shape, buffer.dtype)

    def entries(self, tensor: OpaqueTensor, start: int, stop: int) -> OpaqueTensor:
        assert 0 <= start <= stop <= tensor.shape[0]
        address = _address(tensor) + start * _stride(tensor, 0)
        shape = (stop - start, *tensor.shape[1:])
        return OpaqueTensor(_owner(tensor), address, shape, tensor.dtype)

    def copy(
        self,
        source: OpaqueTensor,
        target: OpaqueTensor,
        *,
        axis: int | None = None,
        length: int = 0,
        source_start: int = 0,
        target_start: int = 0,
    ) -> None:
        assert source.dtype == target.dtype
        assert source.shape[0] == target.shape[0]
        if axis is None:
            assert source.shape == target.shape
            ctypes.memmove(_address(target), _address(source), target.nbytes)
            return
        assert source.shape[:axis] == target.shape[:axis]
        assert source.shape[axis + 1 :] == target.shape[axis + 1 :]
        assert 0 <= source_start <= source_start + length <= source.shape[axis]
        assert 0 <= target_start <= target_start + length <= target.shape[axis]
        width = _stride(target, axis)
        for line in range(prod(target.shape[:axis])):
            ctypes.memmove(
                _address(target) + (line * target.shape[axis] + target_start) * width,
                _address(source) + (line * source.shape[axis] + source_start) * width,
                length * width,
            )

    def copy_entries(
        self,
        source: OpaqueTensor,
        target: OpaqueTensor,
        pairs: Sequence[tuple[int, int]],
        *,
        axis: int | None = None,
        length: int = 0,
    ) -> None:
        for one, other in pairs:
            self.copy(
                self.entries(source, one, one + 1),
                self.entries(target, other, other + 1),
                axis=axis,
                length=length,
            )

    def zero(self, tensor: OpaqueTensor, *, axis: int | None = None, start: int = 0) -> None:
        if axis is None:
            ctypes.memset(_address(tensor), 0, tensor.nbytes)
            return
        width = _stride(tensor, axis)
        for line in range(prod(tensor.shape[:axis])):
            first = line * tensor.shape[axis] + start
            nbytes = (tensor.shape[axis] - start) * width
            ctypes.memset(_address(tensor) + first * width, 0, nbytes)

    def upload(self, values: NDArray[Any], target: OpaqueTensor) -> None:
        assert (values.shape, str(values.dtype)) == (target.shape, target.dtype)
        values = np.ascontiguousarray(values)
        ctypes.memmove(_address(target), values.ctypes.data, values.nbytes)

    def fetch(self, tensor: OpaqueTensor) -> NDArray[Any]:
        self.fetched.append((tensor.shape, tensor.dtype))
        fetched = np.empty(tensor.shape, tensor.dtype)
        ctypes.memmove(fetched.ctypes.data, _address(tensor), fetched.nbytes)
        return fetched

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: OpaqueTensor) -> None:
        dtype = np.dtype(tensor.dtype)
        binding.bind_input(name, "cpu", 0, dtype, tensor.shape, _address(tensor))

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: OpaqueTensor) -> None:
        dtype = np.dtype(tensor.dtype)
        binding.bind_output(name, "cpu", 0, dtype, tensor.shape, _address(tensor))

    def bind_in_place(
        self,
        binding: onnxruntime.IOBinding,
        name: str,
        outputs: Sequence[str],
        tensor: OpaqueTensor,
    ) -> None:
        self.bind_input(binding, name, tensor)
        for output in outputs:
            self.bind_output(binding, output, tensor)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, OpaqueTensor] | None = None,
    ) -> list[OpaqueTensor]:
        binding = session.io_binding()
        held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        for name, array in held.items():
            bind_host_input(binding, name, array)
        for name, tensor in (tensors or {}).items():
            self.bind_input(binding, name, tensor)
        for name in outputs:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        return [
            OpaqueTensor(value, value.data_ptr(), tuple(value.shape()), _dtype(value))
            for value in binding.get_outputs()
        ]


def _stride(tensor: OpaqueTensor, axis: int) -> int:
    """Bytes of one step along an axis."""
    return prod(tensor.shape[axis + 1 :]) * item_bytes(tensor.dtype)  # type: ignore[arg-type]


def _dtype(value: onnxruntime.OrtValue) -> str:
    kinds = {"float": "float32"}
    name = value.data_type().removeprefix("tensor(").removesuffix(")")
    return kinds.get(name, name)
