"""The CPU execution provider over numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype
from inference.engine.state.device import Device, DeviceTensor, EntryCopies
from inference.saturation import open_cpu_session

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # slower than what it replaces on the CPU provider


class CpuDevice(Device):
    """The host's memory. No run is captured."""

    is_host = True
    provider = "CPUExecutionProvider"
    unsupported_dtypes = frozenset({"bfloat16"})

    def allocate(self, size: int, dtype: Dtype) -> NDArray[Any]:
        """Pages that are never touched take no memory."""
        return np.zeros(size, dtype)

    def view(self, buffer: DeviceTensor, shape: tuple[int, ...]) -> NDArray[Any]:
        return _array(buffer)[: prod(shape)].reshape(shape)

    def entries(self, tensor: DeviceTensor, start: int, stop: int) -> NDArray[Any]:
        return _array(tensor)[start:stop]

    def copy(
        self,
        source: DeviceTensor,
        target: DeviceTensor,
        *,
        axis: int | None = None,
        length: int = 0,
        source_start: int = 0,
        target_start: int = 0,
    ) -> None:
        read = _positions(axis, source_start, source_start + length)
        written = _positions(axis, target_start, target_start + length)
        _array(target)[written] = _array(source)[read]

    def copy_entries(self, *jobs: EntryCopies) -> None:
        """One indexed copy of all pairs takes 1.4 times as long."""
        for job in jobs:
            positions = _positions(job.axis, 0, job.length)
            read, written = _array(job.source)[positions], _array(job.target)[positions]
            for one, other in job.pairs:
                written[other] = read[one]

    def zero(self, tensor: DeviceTensor, *, axis: int | None = None, start: int = 0) -> None:
        _array(tensor)[_positions(axis, start, None)] = 0

    def upload(self, values: NDArray[Any], target: DeviceTensor) -> None:
        _array(target)[...] = values

    def fetch_all(self, tensors: Sequence[DeviceTensor]) -> list[NDArray[Any]]:
        """The arrays themselves."""
        return list(map(_array, tensors))

    def open(
        self,
        model: Path | bytes,
        options: onnxruntime.SessionOptions,
        *,
        is_captured: bool = False,
    ) -> onnxruntime.InferenceSession:
        return open_cpu_session(model, options, disabled_optimizers=_SLOW_FUSIONS)

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        binding.bind_cpu_input(name, tensor)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        address = self.address(tensor)
        binding.bind_output(name, "cpu", 0, tensor.dtype, tensor.shape, address)

    def bind_in_place(
        self,
        binding: onnxruntime.IOBinding,
        name: str,
        output: str,
        tensor: DeviceTensor,
    ) -> None:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor)  # one: each address costs 2 us
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(output, value)

    def address(self, tensor: DeviceTensor) -> int:
        return int(_array(tensor).ctypes.data)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, DeviceTensor] | None = None,
    ) -> Sequence[DeviceTensor]:
        found: list[NDArray[Any]] = session.run(outputs, {**arrays, **(tensors or {})})
        return found


def _array(tensor: DeviceTensor) -> NDArray[Any]:
    """A tensor of this device."""
    assert isinstance(tensor, np.ndarray)
    return tensor


def _positions(axis: int | None, start: int, stop: int | None) -> tuple[slice, ...]:
    """An index of positions [start, stop) of all entries; of everything without an axis."""
    if axis is None:
        return (slice(None),)
    return (*[slice(None)] * axis, slice(start, stop))
