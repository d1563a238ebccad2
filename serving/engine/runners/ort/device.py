"""Devices of ONNX Runtime: memory that sessions can be bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from serving.engine.state.device import Device, DeviceTensor, HostMemory


class OrtDevice(Device, Protocol):
    """A device whose tensors can be bound to sessions of its execution provider.

    Inputs that the host makes for each call are uploaded, results that the search needs are
    fetched; everything else stays on the device.
    """

    provider: str
    """Name of the execution provider, as `onnxruntime.get_available_providers` lists it."""
    unsupported_dtypes: frozenset[str]
    """Tensor types for which the provider has no kernels."""

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        """Binds a tensor as a graph's input; the caller keeps it alive."""
        ...

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        """Binds a tensor as a graph's output; the caller keeps it alive."""
        ...

    def bind_in_place(
        self,
        binding: onnxruntime.IOBinding,
        name: str,
        outputs: Sequence[str],
        tensor: DeviceTensor,
    ) -> None:
        """Binds a tensor as a graph's input and as outputs; the caller keeps it alive."""
        ...

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, DeviceTensor] | None = None,
    ) -> list[DeviceTensor]:
        """Runs a graph; its outputs are new tensors on the device.

        Args:
            arrays: Inputs on the host.
            tensors: Inputs on the device.
        """
        ...


class CpuDevice(HostMemory):
    """The CPU execution provider over numpy arrays."""

    provider = "CPUExecutionProvider"
    unsupported_dtypes = frozenset({"bfloat16"})

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: Any) -> None:
        """See `OrtDevice.bind_input`."""
        bind_host_input(binding, name, tensor)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: Any) -> None:
        """See `OrtDevice.bind_output`."""
        binding.bind_output(name, "cpu", 0, tensor.dtype, tensor.shape, tensor.ctypes.data)

    def bind_in_place(
        self, binding: onnxruntime.IOBinding, name: str, outputs: Sequence[str], tensor: Any
    ) -> None:
        """See `OrtDevice.bind_in_place`. One value for all bindings: each address costs 2 us."""
        value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor)
        binding.bind_ortvalue_input(name, value)
        for output in outputs:
            binding.bind_ortvalue_output(output, value)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, Any] | None = None,
    ) -> list[DeviceTensor]:
        """See `OrtDevice.run`."""
        feeds = {**arrays, **tensors} if tensors else arrays
        found: list[DeviceTensor] = session.run(outputs, feeds)
        return found


def bind_host_input(binding: onnxruntime.IOBinding, name: str, array: NDArray[Any]) -> None:
    """Binds an array in host memory, on any device: operators read some scalars there."""
    binding.bind_cpu_input(name, array)


def fetch_floats(device: Device, tensor: DeviceTensor) -> NDArray[np.float32]:
    """A tensor of any float type on the host, as float32."""
    return device.fetch(tensor).astype(np.float32, copy=False)
