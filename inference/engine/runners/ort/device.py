"""Devices of ONNX Runtime: memory that sessions can be bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.engine.runners.cuda.device import AddressDevice
from inference.engine.runners.cuda.tensors import UNCAPTURED
from inference.engine.state.device import Device, DeviceTensor, HostMemory
from inference.saturation import open_cpu_session

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # slower than what it replaces on the CPU provider


class CpuDevice(HostMemory):
    """The CPU execution provider over numpy arrays.

    Tensors of a device can be bound to sessions of its execution provider. Inputs that the host
    makes for each call are uploaded, results that the search needs are fetched; everything else
    stays on the device.

    Attributes:
        provider: Name of the execution provider, as `onnxruntime.get_available_providers` lists it.
        graph_limit: Captured graphs of a session; 0 where runs are not captured.
        unsupported_dtypes: Tensor types for which the provider has no kernels.
        free_bytes: Free memory of a device of its own; None where memory is the host's.
    """

    provider = "CPUExecutionProvider"
    graph_limit = 0
    unsupported_dtypes = frozenset({"bfloat16"})
    free_bytes = None

    def open(
        self,
        model: Path | bytes,
        options: onnxruntime.SessionOptions,
        *,
        is_captured: bool = False,
    ) -> onnxruntime.InferenceSession:
        """A session of a file or a serialized graph on the device's provider, on no other.

        Args:
            is_captured: Whether runs may be captured as graphs; on the CPU none is.

        Raises:
            SetupError: the provider cannot be used here.
        """
        return open_cpu_session(model, options, disabled_optimizers=_SLOW_FUSIONS)

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: Any) -> None:
        """Binds a tensor as a graph's input; the caller keeps it alive."""
        binding.bind_cpu_input(name, tensor)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: Any) -> None:
        """Binds a tensor as a graph's output; the caller keeps it alive."""
        binding.bind_output(name, "cpu", 0, tensor.dtype, tensor.shape, tensor.ctypes.data)

    def bind_in_place(
        self, binding: onnxruntime.IOBinding, name: str, outputs: Sequence[str], tensor: Any
    ) -> None:
        """Binds a tensor as a graph's input and as outputs; the caller keeps it alive."""
        value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor)  # one: each address costs 2 us
        binding.bind_ortvalue_input(name, value)
        for output in outputs:
            binding.bind_ortvalue_output(output, value)

    def bind_host_value(
        self, binding: onnxruntime.IOBinding, name: str, value: NDArray[Any]
    ) -> None:
        """Binds an array that operators of every provider read on the host, again in each run."""
        binding.bind_cpu_input(name, value)

    def bind_arrays(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        arrays: Mapping[str, NDArray[Any]],
    ) -> list[Any]:
        """Binds values of the host as inputs, wherever the graph reads them.

        Returns:
            What must be kept until the run.
        """
        held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        for name, array in held.items():
            binding.bind_cpu_input(name, array)
        return [held]

    def address(self, tensor: Any) -> int:
        """Where a tensor's elements begin."""
        return int(tensor.ctypes.data)

    def run_bound(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        graph_id: int = UNCAPTURED,
    ) -> None:
        """Runs a graph on what is bound.

        Args:
            graph_id: Captures the run as a graph, or replays the one captured under this id, on the
                addresses of its capture; see `GraphIds`.
        """
        session.run_with_iobinding(binding)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, Any] | None = None,
    ) -> list[DeviceTensor]:
        """Runs a graph; its outputs are new tensors on the device.

        Args:
            arrays: Inputs on the host.
            tensors: Inputs on the device.
        """
        feeds = {**arrays, **tensors} if tensors else arrays
        found: list[DeviceTensor] = session.run(outputs, feeds)
        return found

    def trim(self) -> None:
        """Frees memory kept for speed alone."""

    def close(self) -> None:
        """Gives the device back, when no session uses it any more."""


OrtDevice = CpuDevice | AddressDevice
"""Memory that sessions of ONNX Runtime can be bound to."""


def fetch_floats(device: Device, tensor: DeviceTensor) -> NDArray[np.float32]:
    """A tensor of any float type on the host, as float32."""
    return device.fetch(tensor).astype(np.float32, copy=False)
