"""What all parts of the ONNX Runtime runner share: device, sessions, scratch, states of images.

What `admit` computes of an image is kept for later prompts that hold the same one: a conversation
sends its pictures again with every turn, and many questions may be about one.

Decision D104.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from cachetools import LRUCache
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Dtype, Growth, Manifest, Role, Tensor
from inference.engine.runners.candidates import HostLogits, Logits
from inference.engine.runners.cuda.tensors import GraphIds
from inference.engine.runners.ort.greedy_graph import greedy_graph, small_step
from inference.engine.runners.ort.logits_graphs import (
    CellEditor,
    Float32Cast,
    OrtLogits,
    TopK,
    open_model,
)
from inference.engine.runners.protocol import Prompt
from inference.engine.state.device import Device, DeviceTensor, EntryCopies
from inference.engine.state.group_state import BufferPool, GroupState
from inference.errors import BundleError, SetupError
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
            moves: Sequence[tuple[Any, Any]] = job.pairs
            if job.axis is not None:
                inner = [_positions(job.axis, *span)[1:] for span in job.spans]
                named = zip(job.pairs, inner, strict=True)
                moves = [((one, *where), (other, *where)) for (one, other), where in named]
            for source, target in zip(job.sources, job.targets, strict=True):
                read, written = _array(source), _array(target)
                for one, other in moves:
                    written[other] = read[one]

    def zero(self, tensor: DeviceTensor, *, axis: int | None = None, start: int = 0) -> None:
        _array(tensor)[_positions(axis, start, None)] = 0

    def upload(self, values: NDArray[Any], target: DeviceTensor) -> None:
        _array(target)[...] = values

    def fetch_all(self, tensors: Sequence[DeviceTensor]) -> list[NDArray[Any]]:
        return list(map(_array, tensors))

    def open(
        self, model: Path | bytes, options: onnxruntime.SessionOptions, *, is_captured: bool = False
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


Key = bytes


class ImageStates:
    """HOLD states of images by their pixels; evicts the least recently used.

    Args:
        capacity_bytes: Bound on the bytes of all states; nothing larger is kept.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._held: LRUCache[Key, Sequence[DeviceTensor]] = LRUCache(capacity_bytes, _size)

    @property
    def nbytes(self) -> int:
        """Of all states."""
        return int(self._held.currsize)

    @staticmethod
    def key(pixels: NDArray[np.uint8], source_ids: NDArray[np.int64] | None = None) -> Key:
        """Of one image, (height, width, 3), its size, and the text that is read with it."""
        size = np.array(pixels.shape[:2], np.int64).tobytes()
        digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=32, salt=size)
        if source_ids is not None:
            digest.update(np.ascontiguousarray(source_ids).data)
        return digest.digest()

    def get(self, key: Key) -> Sequence[DeviceTensor] | None:
        """One tensor (1, …) for each HOLD state, in the manifest's order; None if not kept."""
        return self._held.get(key)

    def put(self, key: Key, states: Sequence[DeviceTensor]) -> None:
        """Keeps the states of an image."""
        if key not in self._held and _size(states) <= self._held.maxsize:
            self._held[key] = states

    def clear(self) -> None:
        """Drops everything."""
        self._held.clear()


def _size(states: Sequence[DeviceTensor]) -> int:
    return sum(each.nbytes for each in states)


_SERIAL_BYTES = 16 << 20
"""Of `step`: in a smaller graph, waking another thread takes longer than its share of the work, and
waiting for one that another process keeps from its core far longer."""


class OrtSessions:
    """Sessions of one bundle's decoder graphs on one device. One call at a time.

    Args:
        threads: Intra-op threads; where `step` is small there is one.
        spare_bytes: Bound on released buffers and on states of images that are kept for reuse.

    Attributes:
        pool: Buffers of all arenas.
        images: States of images of earlier prompts.
        step: The graph `step`.
        graph_ids: Of its captured runs.
        admit: The graph `admit`, if the bundle has one.
        has_greedy: Whether the bundle's steps are small enough for the greedy graph.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int, spare_bytes: int) -> None:
        self.manifest, self.device = bundle.manifest, device
        self.vocabulary_size, logits = _check_manifest(bundle.manifest, device)
        kept = spare_bytes // 2 if bundle.manifest.images else 0
        self.pool = BufferPool(device, spare_bytes - kept)
        self.images = ImageStates(kept)
        self._bundle = bundle
        # where steps are captured, several in one call save nothing
        self.has_greedy = not device.keeps_addresses and self._read_small_step() is not None
        is_serial = self.has_greedy and self._path("step").stat().st_size <= _SERIAL_BYTES
        self._options = partial(session_options, 1 if is_serial else threads)  # of one session each
        self.step = self._open("step", is_captured=device.graph_limit > 0)
        self.graph_ids = GraphIds(device.graph_limit)
        self.admit = self._open("admit") if "admit" in bundle.manifest.graphs else None
        self.topk = TopK(self._options(), self.vocabulary_size, device)
        self._logits_dtype = logits.dtype
        self._cast = Float32Cast(self._options(), device, logits.dtype)
        self._scratch: dict[tuple[str, Dtype], DeviceTensor] = {}
        self._idle: list[GroupState] = []

    @cached_property
    def align(self) -> onnxruntime.InferenceSession:
        """The graph `align`, opened on first use: it holds the decoder's weights a second time."""
        return self._open("align")

    @cached_property
    def greedy(self) -> onnxruntime.InferenceSession:
        """The greedy graph, opened on first use."""
        step = self._read_small_step()
        assert step is not None
        return open_model(greedy_graph(step, self.manifest), self._options(), self.device)

    def _read_small_step(self) -> onnx.ModelProto | None:
        return small_step(self.manifest, self._path("step"))

    @cached_property
    def _editor(self) -> CellEditor:
        return CellEditor(self._options(), self.device)

    def source_length(self, prompt: Prompt) -> int:
        """Positions of a prompt's source: its tokens, or those of its images."""
        images = self.manifest.images
        if images is not None:
            return sum(images.positions_of(*image.shape[:2]) for image in prompt.images)
        return 0 if prompt.source_ids is None else len(prompt.source_ids)

    def logits_scratch(self, rows: int) -> DeviceTensor:
        """(rows, V) in the graph's dtype; every call of this model writes to the same memory."""
        return self.scratch("logits", (rows, self.vocabulary_size), self._logits_dtype)

    def logits(self, values: DeviceTensor) -> Logits:
        """Logits of a call, as float32, for edits and ranking."""
        if self._logits_dtype != "float32":
            target = self.scratch("scores", values.shape, "float32")
            self._cast.run(values, target)
            values = target
        if self.device.is_host:
            return HostLogits(self.device.fetch(values), self.topk.rank)
        return OrtLogits(values, self.device, self.topk, self._editor)

    def close(self) -> None:
        """Frees sessions and buffers."""
        self.pool.clear()
        self.images.clear()
        self._scratch.clear()
        self._idle.clear()
        del self.step, self.admit, self.topk, self._cast
        for opened_later in ("align", "greedy", "_editor"):
            self.__dict__.pop(opened_later, None)
        self.device.close()

    def scratch(self, name: str, shape: tuple[int, ...], dtype: Dtype) -> DeviceTensor:
        """The memory of that name, at the same address until a larger shape is needed."""
        size, held = prod(shape), self._scratch.get((name, dtype))
        if held is None or size > held.shape[0]:
            doubled = 0 if held is None else 2 * held.shape[0]
            held = self.device.allocate(max(size, doubled), dtype)
            self._scratch[name, dtype] = held
        return self.device.view(held, shape)

    def group_state(self, width: int) -> GroupState:
        """An empty state; on devices that keep addresses one that an earlier group has left."""
        for state in self._idle:
            if state.width == width:
                self._idle.remove(state)
                return state
        is_fixed = self.device.keeps_addresses
        return GroupState(self.manifest.states, width, self.pool, is_fixed=is_fixed)

    def release(self, state: GroupState) -> None:
        """Takes a group's state back; its arenas stay where addresses are kept."""
        state.release()
        if self.device.keeps_addresses:
            self._idle.append(state)

    def _open(self, graph: str, *, is_captured: bool = False) -> onnxruntime.InferenceSession:
        """A session on the device's provider, without a silent fallback to another.

        Raises:
            BundleError: the graph does not load on this provider.
        """
        path, provider = self._path(graph), self.device.provider
        try:
            session = self.device.open(path, self._options(), is_captured=is_captured)
        except SetupError:
            raise
        except Exception as error:  # the runtime's exceptions share no base class
            raise BundleError(f"ONNX Runtime cannot load {path.name}: {error}") from error
        if provider not in session.get_providers():
            raise BundleError(
                f"ONNX Runtime cannot run {path.name} on {provider}: "
                f"it offers {', '.join(session.get_providers())}"
            )
        return session

    def _path(self, graph: str) -> Path:
        return self._bundle.path(self.manifest.graphs[graph].file)


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Options with few threads, none of which spins while the engine is idle."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def pad_right(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of ids as (rows, longest); padded with 0, a valid id in any vocabulary."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _check_manifest(manifest: Manifest, device: Device) -> tuple[int, Tensor]:
    """The vocabulary's size and the LOGITS output of a manifest that this runner supports.

    Raises:
        BundleError: no `step` graph, LOGITS or vocabulary size, or an unsupported state.
    """
    if "step" not in manifest.graphs:
        raise BundleError(f"{manifest.name} has no step graph: it is not a generator")
    logits = manifest.graphs["step"].output(Role.LOGITS)
    if manifest.vocabulary_size is None or logits is None:
        raise BundleError(
            f"{manifest.name} lacks vocabulary_size or a LOGITS output: export it again"
        )
    for state in manifest.states:
        if state.growth is Growth.APPEND and state.layout != "in_place":
            raise BundleError(
                f"{manifest.name}: state {state.name} has layout {state.layout!r}, supported is "
                "in_place: export for ONNX Runtime"
            )
        if state.growth is Growth.HOLD and state.admit_output is None:
            raise BundleError(f"{manifest.name}: HOLD state {state.name} has no admit_output")
    dtypes = {state.name: state.dtype for state in manifest.states} | {logits.name: logits.dtype}
    for name, dtype in dtypes.items():
        if dtype in device.unsupported_dtypes:
            raise BundleError(
                f"{manifest.name}: {name} is {dtype}, which {device.provider} does not support: "
                "export in another precision, or serve on another device"
            )
    return manifest.vocabulary_size, logits
