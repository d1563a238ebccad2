"""The graphs of a bundle as `Run`s: the modules, ONNX Runtime or OpenVINO, called with arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from export.architecture import Graphs
from export.checkpoint.memory import return_memory
from export.parity.compiled_run import CompiledRun
from export.parity.paged_run import PagedRun
from export.parity.parity_inputs import Array, Feeds, Run
from export.precision import Precision
from inference.bundle.manifest import Bundle, Role
from inference.saturation import open_cpu_session

RESIDENT_BYTES = 512 << 20
"""Files of graphs that verification keeps loaded at once."""


class TimedRun:
    """The time of each call of a `Run`, as the probe happens to call it."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = {}

    def of(self, run: Run) -> Run:
        """The same calls, timed."""

        def timed(key: str, feeds: Feeds) -> dict[str, Array]:
            started_s = time.perf_counter()
            outputs = run(key, feeds)
            self._spent.setdefault(key, []).append(1000 * (time.perf_counter() - started_s))
            return outputs

        return timed

    @property
    def milliseconds(self) -> dict[str, float]:
        """Median of each graph's calls; one that loads its graph takes longer."""
        return {key: round(float(np.median(times)), 3) for key, times in self._spent.items()}


def bundle_path(bundle: Bundle, key: str) -> Path:
    """Path of one graph's file, in a staged bundle (`<model>/`) or a published one.

    A published bundle has a version folder below each of its Triton models.
    """
    manifest = bundle.manifest
    part, file = manifest.parts.get(key, manifest.name), manifest.graphs[key].file
    if bundle.folder.parent.name == manifest.name:
        return bundle.folder.parents[1] / part / bundle.folder.name / file
    return bundle.folder.parent / part / file


def file_bytes(path: Path) -> int:
    """Size of a graph, weights that lie beside it included."""
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.is_file() else 0)


def torch_run(graphs: Graphs) -> Run:
    """The modules, called with arrays; a choice of places may be one of them (`Choices`)."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        lowering = graphs.lowerings[key]
        names = [port.name for port in lowering.graph.inputs]
        if (chosen := lowering.graph.output(Role.CHOSEN)) and chosen.name in feeds:
            names.append(chosen.name)
        inputs = [torch.from_numpy(np.array(feeds[name])) for name in names]
        with torch.no_grad():
            outputs = lowering.module(*inputs)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        names = [port.name for port in lowering.graph.outputs]
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return run


class LazySessions:
    """ONNX Runtime over a bundle's graphs, as a `Run`.

    A graph is loaded at its first call. Where the files together exceed `RESIDENT_BYTES`, the
    least recently called graphs are unloaded: a large model's graphs need not be in memory at once.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._open: dict[str, onnxruntime.InferenceSession] = {}  # in the order of their last calls

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph."""
        session = self._open.pop(key, None)
        if session is None:
            self._make_room(file_bytes(self._files[key]))
            session = open_cpu_session(self._files[key], _without_arena())
        self._open[key] = session
        return onnx_run(self._open)(key, feeds)

    def close(self) -> None:
        """Unloads all graphs; the next call loads its own again."""
        self._open.clear()
        return_memory()

    def _make_room(self, needed: int) -> None:
        held = {key: file_bytes(self._files[key]) for key in self._open}
        for key in list(self._open):
            if sum(held.values()) + needed <= RESIDENT_BYTES:
                return
            del self._open[key], held[key]
            return_memory()


def _without_arena() -> onnxruntime.SessionOptions:
    """Options by which memory of a call is freed when it ends; numbers do not depend on it."""
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    return options


OpenGraphs = LazySessions | CompiledRun | PagedRun
"""A `Run` that holds what it has loaded until it is closed."""


def open_graphs(bundle: Bundle, precision: Precision | None = None) -> OpenGraphs:
    """A bundle's graphs in the runtime that will serve them; TensorRT's in ONNX Runtime.

    Args:
        precision: That of the files as they are now; by default the manifest's.
    """
    manifest = bundle.manifest
    files = {key: bundle_path(bundle, key) for key in manifest.graphs}
    if manifest.runtime != "openvino":
        return LazySessions(files)
    if "step" in files:
        return PagedRun(bundle, precision or Precision(manifest.precision))
    return CompiledRun(manifest, files, precision or Precision(manifest.precision))


def onnx_run(sessions: dict[str, onnxruntime.InferenceSession]) -> Run:
    """The sessions, called with arrays."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        names = [output.name for output in sessions[key].get_outputs()]
        return dict(zip(names, sessions[key].run(names, feeds), strict=True))

    return run
