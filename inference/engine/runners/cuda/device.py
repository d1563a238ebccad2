"""Devices whose tensors are addresses: CUDA in serving, host memory in tests.

The same code allocates, copies and binds on both, so that what a card runs is tested without one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype
from inference.engine.runners.cuda.installation import (
    PROVIDER,
    require_cudnn,
    require_loaded,
    require_provider,
)
from inference.engine.runners.cuda.runtime import CudaRuntime, Direction
from inference.engine.runners.cuda.tensors import (
    GRAPH_LIMIT,
    AddressedTensor,
    Memory,
    as_addressed,
    batches,
)
from inference.engine.state.device import UNCAPTURED, Device, DeviceTensor, EntryCopies, item_bytes

log = logging.getLogger(__name__)

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16: numpy has no such type
_ERRORS = 3  # ONNX Runtime's severity
_CAPTURE_REFUSED = "cannot use the graph capture feature"


class AddressDevice(Device):
    """What `inference.engine.runners.ort.sessions.CpuDevice` is to the CPU.

    Args:
        runtime: Allocates and copies.
        provider: Execution provider whose kernels read these addresses.
        memory_name: ONNX Runtime's name of the memory.
        number: Of the device.
        graph_limit: Captured graphs of a session.
    """

    keeps_addresses = True

    def __init__(
        self,
        runtime: CudaRuntime,
        provider: str,
        memory_name: str,
        number: int = 0,
        graph_limit: int = GRAPH_LIMIT,
    ) -> None:
        self._runtime, self._memory = runtime, Memory(runtime)
        self.provider, self.graph_limit = provider, graph_limit
        self._memory_name, self._number = memory_name, number
        self._read_on_host: WeakKeyDictionary[onnxruntime.InferenceSession, frozenset[str]]
        self._read_on_host = WeakKeyDictionary()

    @property
    def free_bytes(self) -> int:
        return self._runtime.memory()[0]

    def allocate(self, size: int, dtype: Dtype) -> AddressedTensor:
        nbytes = size * item_bytes(dtype)
        if not nbytes:  # an empty arena must not fail where memory is short
            return AddressedTensor(None, 0, (size,), dtype)
        block = self._memory.block(nbytes)
        self._runtime.clear(block.address, nbytes, nbytes, 1)
        return AddressedTensor(block, block.address, (size,), dtype)

    def view(self, buffer: DeviceTensor, shape: tuple[int, ...]) -> AddressedTensor:
        assert len(buffer.shape) == 1
        assert prod(shape) <= buffer.shape[0]
        return replace(as_addressed(buffer), shape=shape)

    def entries(self, tensor: DeviceTensor, start: int, stop: int) -> AddressedTensor:
        assert 0 <= start <= stop <= tensor.shape[0]
        whole = as_addressed(tensor)
        address = whole.address + start * whole.stride(0)
        return replace(whole, address=address, shape=(stop - start, *whole.shape[1:]))

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
        """One call: a line is the positions of one head of one entry."""
        source, target = as_addressed(source), as_addressed(target)
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
        """One call for all jobs, unless pairs depend on each other."""
        for batch in batches(jobs):
            self._runtime.copy_batch(batch)

    def zero(self, tensor: DeviceTensor, *, axis: int | None = None, start: int = 0) -> None:
        if axis is None:
            axis, start = 0, 0
        cleared = as_addressed(tensor)
        step, lines = cleared.stride(axis), prod(cleared.shape[:axis])
        pitch, width = cleared.shape[axis] * step, (cleared.shape[axis] - start) * step
        if width and lines:
            self._runtime.clear(cleared.address + start * step, pitch, width, lines)

    def upload(self, values: NDArray[Any], target: DeviceTensor) -> None:
        assert (values.shape, str(values.dtype)) == (target.shape, target.dtype)
        held = np.ascontiguousarray(values)
        staged = self._runtime.stage(held.nbytes)
        if staged is not None:
            staged[:] = held.reshape(-1).view(np.uint8)
            held = staged
        self._move(self.address(target), held.ctypes.data, held.nbytes, Direction.TO_DEVICE)

    def fetch_all(self, tensors: Sequence[DeviceTensor]) -> list[NDArray[Any]]:
        """New arrays, bfloat16 as float32. Waits for the device once."""
        copied: list[NDArray[np.uint8]] = []
        for tensor in tensors:
            staged = self._runtime.stage(tensor.nbytes)
            copied.append(np.empty(tensor.nbytes, np.uint8) if staged is None else staged)
            address = self.address(tensor)
            self._move(copied[-1].ctypes.data, address, tensor.nbytes, Direction.TO_HOST)
        self._runtime.synchronize()
        return [
            _as_array(part, as_addressed(each)) for part, each in zip(copied, tensors, strict=True)
        ]

    def open(
        self, model: Path | bytes, options: onnxruntime.SessionOptions, *, is_captured: bool = False
    ) -> onnxruntime.InferenceSession:
        providers: list[Any] = [(self.provider, self._provider_options(is_captured=is_captured))]
        if self.provider != "CPUExecutionProvider":
            providers.append("CPUExecutionProvider")  # arithmetic with shapes
        try:
            return onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:  # the runtime's exceptions share no base class
            if not is_captured or _CAPTURE_REFUSED not in str(error):
                raise
        log.warning("a step is not captured as a CUDA graph: ONNX Runtime refuses it")
        return self.open(model, options)

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        binding.bind_input(name, *self._place(tensor))

    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        binding.bind_output(name, *self._place(tensor))

    def address(self, tensor: DeviceTensor) -> int:
        return as_addressed(tensor).address

    def bind_arrays(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        arrays: Mapping[str, NDArray[Any]],
    ) -> list[DeviceTensor]:
        """What kernels read on the device is uploaded on our stream.

        ONNX Runtime's own copy would be on another one, into memory that ours may still use.
        """
        held: list[DeviceTensor] = []
        for name, array in arrays.items():
            if name in self._host_inputs(session):
                held.append(np.ascontiguousarray(array))
                binding.bind_cpu_input(name, held[-1])
            else:
                dtype: Dtype = str(array.dtype)  # type: ignore[assignment]
                tensor = self.view(self.allocate(array.size, dtype), array.shape)
                self.upload(array, tensor)
                held.append(tensor)
                self.bind_input(binding, name, tensor)
        return held

    def run_bound(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        graph_id: int = UNCAPTURED,
    ) -> None:
        """A captured run does not wait for the device.

        Raises:
            DeviceError: a kernel needs cuDNN, which is missing.
        """
        try:
            session.run_with_iobinding(binding, _run_options(graph_id))
        except Exception as error:  # the runtime's exceptions share no base class
            require_cudnn(error)
            raise

    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, DeviceTensor] | None = None,
    ) -> Sequence[DeviceTensor]:
        binding = session.io_binding()
        held = self.bind_arrays(session, binding, arrays)
        for name, tensor in (tensors or {}).items():
            self.bind_input(binding, name, tensor)
        for name in outputs:
            binding.bind_output(name, self._memory_name, self._number)
        self.run_bound(session, binding)
        del held
        return [
            AddressedTensor(value, value.data_ptr(), tuple(value.shape()), _dtype(value))
            for value in binding.get_outputs()
        ]

    def trim(self) -> None:
        self._memory.trim()

    def close(self) -> None:
        self.trim()
        self._runtime.close()

    def _move(self, target: int, source: int, nbytes: int, direction: Direction) -> None:
        if nbytes:
            self._runtime.copy(target, nbytes, source, nbytes, nbytes, 1, direction)

    def _provider_options(self, *, is_captured: bool) -> dict[str, str]:
        return {}

    def _host_inputs(self, session: onnxruntime.InferenceSession) -> frozenset[str]:
        """Inputs of a graph that its kernels read on the host."""
        if session not in self._read_on_host:
            places = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
            names = frozenset(port.name for port, place in places if place.name.startswith("Cpu"))
            self._read_on_host[session] = names
        return self._read_on_host[session]

    def _place(self, tensor: DeviceTensor) -> tuple[str, int, Any, tuple[int, ...], int]:
        """Memory, element type, shape and address, as bindings take them."""
        addressed = as_addressed(tensor)
        kind = _BFLOAT16 if addressed.dtype == "bfloat16" else np.dtype(addressed.dtype)
        return self._memory_name, self._number, kind, addressed.shape, addressed.address


class CudaDevice(AddressDevice):
    """A card, on one stream for all sessions of a runner.

    Args:
        number: Of the card.
        graph_limit: Captured graphs of a session; 0 captures none.

    Raises:
        DeviceError: onnxruntime-gpu, the CUDA libraries or the card are missing.
    """

    def __init__(self, number: int = 0, graph_limit: int = GRAPH_LIMIT) -> None:
        require_provider()
        onnxruntime.set_default_logger_severity(_ERRORS)  # it warns of shape arithmetic on the host
        self.runtime = CudaRuntime(number)
        super().__init__(self.runtime, PROVIDER, "cuda", number, graph_limit)

    def open(
        self, model: Path | bytes, options: onnxruntime.SessionOptions, *, is_captured: bool = False
    ) -> onnxruntime.InferenceSession:
        """ONNX Runtime falls back to the CPU where CUDA does not load."""
        options.log_severity_level = _ERRORS
        session = super().open(model, options, is_captured=is_captured)
        require_loaded(session)
        return session

    def _provider_options(self, *, is_captured: bool) -> dict[str, str]:
        return {
            "device_id": str(self._number),
            "user_compute_stream": str(self.runtime.stream),
            "enable_cuda_graph": str(int(is_captured)),
            "use_tf32": "0",  # float32 bundles compute in float32
            "enable_skip_layer_norm_strict_mode": "1",  # sums in float32 (D70)
            "cudnn_conv_algo_search": "HEURISTIC",  # shapes vary: an exhaustive search is repeated
            "arena_extend_strategy": "kSameAsRequested",
        }


@cache
def _run_options(graph_id: int) -> onnxruntime.RunOptions:
    """Captured runs do not wait for the device (D70).

    Others do: without, ONNX Runtime 1.31 frees a kernel's page-locked memory (`Split`, `LSTM`) in a
    callback of the stream, where CUDA does not permit it, and the process ends.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    if graph_id != UNCAPTURED:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def _dtype(value: onnxruntime.OrtValue) -> Dtype:
    name = value.data_type().removeprefix("tensor(").removesuffix(")")
    return "float32" if name == "float" else name


def _as_array(fetched: NDArray[np.uint8], tensor: AddressedTensor) -> NDArray[Any]:
    """The bytes of a tensor as an array of its own."""
    if tensor.dtype != "bfloat16":
        array: NDArray[Any] = fetched.view(tensor.dtype).reshape(tensor.shape)
        return array.copy()
    bits = fetched.view(np.uint16).reshape(tensor.shape).astype(np.uint32)
    return (bits << 16).view(np.float32)
