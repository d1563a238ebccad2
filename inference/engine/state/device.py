"""The one interface of devices: their memory, and runs of ONNX Runtime's sessions on it.

The engine holds tensors by handle and never looks inside: on a device the host has no access to
them except by an explicit `fetch` (D3). On the CPU a handle is the numpy array itself, so nothing
is slower than direct indexing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype

if TYPE_CHECKING:  # what holds no device needs no runtime
    import onnxruntime

UNCAPTURED = -1
"""The id with which ONNX Runtime runs node by node."""


class DeviceTensor(Protocol):
    """A contiguous tensor in a device's memory. Only its device reads or writes its elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""

    @property
    def dtype(self) -> object:
        """Compares equal to its `Dtype`."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""


@dataclass(frozen=True, eq=False, slots=True)
class EntryCopies:
    """Copies of entries between tensors, or within one: the same in each of several alike ones.

    Attributes:
        sources: Tensors of one layout.
        targets: As many, in another layout or the same; they may be the sources.
        pairs: (entry of a source, entry of its target), in order: a pair may read what an earlier
            one wrote.
        axis: Of positions, counting the first dimension as 0; None: entries are copied whole.
        spans: Positions [start, stop) that each pair copies.
    """

    sources: Sequence[DeviceTensor]
    targets: Sequence[DeviceTensor]
    pairs: Sequence[tuple[int, int]]
    axis: int | None = None
    spans: Sequence[tuple[int, int]] = ()


class Device(ABC):
    """Allocation, copies and graphs in one device's memory.

    A copy or zeroing is of whole entries (along the first dimension), or of a range of positions
    along `axis`, which counts the first dimension as 0.

    Inputs that the host makes for each call are uploaded, results that the search needs are
    fetched; everything else stays on the device. What is bound is kept alive by the caller.
    """

    is_host: bool = False
    """Whether tensors are numpy arrays."""
    keeps_addresses: bool = False
    """Whether arenas stay where they are as they grow, for graphs captured on their addresses."""
    provider: str
    """Name of the execution provider, as `onnxruntime.get_available_providers` lists it."""
    graph_limit: int = 0
    """Captured graphs of a session; 0 where runs are not captured."""
    unsupported_dtypes: frozenset[str] = frozenset()
    """Tensor types for which the provider has no kernels."""

    @property
    def free_bytes(self) -> int | None:
        """Free memory of a device of its own; None where memory is the host's."""
        return None

    @abstractmethod
    def allocate(self, size: int, dtype: Dtype) -> DeviceTensor:
        """A one-dimensional tensor of zeros.

        Raises:
            MemoryError: there is too little memory.
        """

    @abstractmethod
    def view(self, buffer: DeviceTensor, shape: tuple[int, ...]) -> DeviceTensor:
        """The first elements of a one-dimensional tensor, in that shape; shares its memory."""

    @abstractmethod
    def entries(self, tensor: DeviceTensor, start: int, stop: int) -> DeviceTensor:
        """Entries [start, stop) of a tensor; shares its memory."""

    @abstractmethod
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
        """Copies all entries, or `length` positions of each, between tensors of as many entries."""

    @abstractmethod
    def copy_entries(self, *jobs: EntryCopies) -> None:
        """Copies entries. Jobs may run in any order: none touches what another one writes."""

    @abstractmethod
    def zero(self, tensor: DeviceTensor, *, axis: int | None = None, start: int = 0) -> None:
        """Sets all elements to zero, or the positions from `start` on."""

    @abstractmethod
    def upload(self, values: NDArray[Any], target: DeviceTensor) -> None:
        """Writes host values of the target's shape and dtype."""

    @abstractmethod
    def fetch_all(self, tensors: Sequence[DeviceTensor]) -> list[NDArray[Any]]:
        """Several tensors on the host, with one wait for the device. They may share its memory."""

    def fetch(self, tensor: DeviceTensor) -> NDArray[Any]:
        """The tensor on the host: with `fetch_all` the only way to read its elements."""
        return self.fetch_all([tensor])[0]

    def fetch_floats(self, tensor: DeviceTensor) -> NDArray[np.float32]:
        """A tensor of any float type on the host, as float32."""
        return self.fetch(tensor).astype(np.float32, copy=False)

    @abstractmethod
    def open(
        self, model: Path | bytes, options: onnxruntime.SessionOptions, *, is_captured: bool = False
    ) -> onnxruntime.InferenceSession:
        """A session of a file or a serialized graph on the device's provider, on no other.

        Args:
            is_captured: Whether runs may be captured as graphs.

        Raises:
            SetupError: the provider cannot be used here.
        """

    @abstractmethod
    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        """Binds a tensor as a graph's input."""

    @abstractmethod
    def bind_output(self, binding: onnxruntime.IOBinding, name: str, tensor: DeviceTensor) -> None:
        """Binds a tensor as a graph's output."""

    def bind_in_place(
        self,
        binding: onnxruntime.IOBinding,
        name: str,
        output: str,
        tensor: DeviceTensor,
    ) -> None:
        """Binds a tensor as a graph's input and as an output."""
        self.bind_input(binding, name, tensor)
        self.bind_output(binding, output, tensor)

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
    ) -> list[DeviceTensor]:
        """Binds values of the host as inputs, wherever the graph reads them.

        Returns:
            What must be kept until the run.
        """
        held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        for name, array in held.items():
            binding.bind_cpu_input(name, array)
        return list(held.values())

    @abstractmethod
    def address(self, tensor: DeviceTensor) -> int:
        """Where a tensor's elements begin."""

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

    @abstractmethod
    def run(
        self,
        session: onnxruntime.InferenceSession,
        outputs: Sequence[str],
        arrays: Mapping[str, NDArray[Any]],
        tensors: Mapping[str, DeviceTensor] | None = None,
    ) -> Sequence[DeviceTensor]:
        """Runs a graph; its outputs are new tensors on the device.

        Args:
            arrays: Inputs on the host.
            tensors: Inputs on the device.
        """

    def trim(self) -> None:  # noqa: B027 - most keep none
        """Frees memory kept for speed alone."""

    def close(self) -> None:  # noqa: B027
        """Gives the device back, when no session uses it any more."""


def item_bytes(dtype: Dtype) -> int:
    """Bytes of one element; numpy has no bfloat16."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
