"""The graphs of a bundle as `Run`s: the modules, ONNX Runtime or OpenVINO."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.architecture import Graphs
from export.parity.parity_inputs import Array, Feeds, Run
from export.precision import Precision
from export.triton_config import stateless_config
from inference.bundle.manifest import Bundle, Growth, Manifest, Role
from inference.errors import SetupError
from inference.process_limits import return_memory
from inference.saturation import open_cpu_session


class CompiledRun:
    """The graphs in the same runtime, with the same configuration, as when they are served.

    A `Run`; a graph is compiled at its first call.

    Args:
        files: Graph → its file.
        precision: That of the files.
    """

    def __init__(self, manifest: Manifest, files: Mapping[str, Path], precision: Precision) -> None:
        self._manifest, self._files, self._precision = manifest, files, precision
        self._compiled: dict[str, Any] = {}

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph.

        Raises:
            SetupError: OpenVINO is not installed.
        """
        if key not in self._compiled:
            self._compiled[key] = self._compile(key)
        outputs = [port.name for port in self._manifest.graphs[key].outputs]
        found: dict[str, Array] = self._compiled[key].run(outputs, feeds)
        return found

    def close(self) -> None:
        """Unloads all graphs; the next call loads its own again."""
        self._compiled.clear()

    def _compile(self, key: str) -> Any:
        try:
            from inference.stateless.compiled_graphs import CompiledGraphs
        except ImportError as error:
            raise SetupError(missing_package("openvino")) from error
        return CompiledGraphs(self._files[key], _config(self._manifest, key, self._precision))


def _config(manifest: Manifest, key: str, precision: Precision) -> dict[str, Any]:
    """The configuration of one graph, as Triton's JSON."""
    text = stateless_config(
        manifest.parts[key], manifest.graphs[key], runtime="openvino", precision=precision.value
    )
    message = text_format.Parse(text, pb.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def missing_package(package: str) -> str:
    """What to install for OpenVINO."""
    return f"--runtime openvino needs {package}: pip install 'triptych[openvino]'"


class PagedRun:
    """A `Run` over the decoder that serves the bundle; it is compiled at the first call.

    APPEND states are returned as (rows, blocks, …), the blocks as they lie in memory, and are taken
    back in that form; zeros of any form are no past.

    Args:
        precision: That of the files.
    """

    def __init__(self, bundle: Bundle, precision: Precision) -> None:
        manifest = bundle.manifest.model_copy(update={"precision": precision.value})
        self._bundle = Bundle(bundle.folder, manifest)
        self._decoder: Any = None

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph.

        Raises:
            SetupError: OpenVINO is not installed.
        """
        if self._decoder is None:
            self._decoder = self._compile()
        if key != "step":
            found = self._decoder.run(key, feeds)
            return {name: value.copy() for name, value in found.items()}
        return self._step(feeds)

    def close(self) -> None:
        """Unloads all graphs; the next call loads them again."""
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None

    def _compile(self) -> Any:
        try:
            from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder
        except ImportError as error:
            raise SetupError(missing_package("openvino")) from error
        return CompiledDecoder(self._bundle, threads=2, spare_bytes=0)

    def _step(self, feeds: Feeds) -> dict[str, Array]:
        """One call of `step`: (R, T) tokens, right-padded, each row behind its own past."""
        from inference.engine.runners.openvino.compiled_decoder import Span

        decoder, manifest = self._decoder, self._bundle.manifest
        graph = manifest.graphs["step"]
        tokens, lengths, last = (
            feeds[port.name]
            for role in (Role.TOKENS, Role.LENGTHS, Role.LAST)
            if (port := graph.input(role)) is not None
        )
        rows, columns = tokens.shape
        past = lengths - last - 1
        needed = decoder.memory.pool.blocks_of(int(past.max()) + columns)
        tables = [decoder.memory.pool.allocate(needed) for _ in range(rows)]
        caches = list(decoder.memory.tensors().values())
        states = [each for each in manifest.states if each.growth is Growth.APPEND]
        for cache, state in zip(caches, states, strict=True):
            held = feeds[state.step_input]
            if held.ndim == cache.ndim + 1:
                for table, blocks in zip(tables, held, strict=True):
                    cache[table[: len(blocks)]] = blocks[:needed]
        call = decoder.call()
        call.bind({name: feeds[name] for name in decoder.source_inputs})
        images = self._images(feeds, tokens)
        spans = [
            Span(int(p), columns, table, *read)
            for p, table, read in zip(past, tables, images, strict=True)
        ]
        call.run(tokens.reshape(-1), spans, np.arange(rows) * columns + last)
        logits = graph.output(Role.LOGITS)
        assert logits is not None
        outputs = {logits.name: call.outputs()[0].copy()}
        for cache, state in zip(caches, states, strict=True):
            outputs[str(state.step_output)] = cache[np.array(tables)]
        outputs |= self._counts(feeds, tokens, last)
        decoder.release(call)
        for table in tables:
            decoder.memory.pool.release(table)
        return outputs

    def _images(self, feeds: Feeds, tokens: Array) -> list[tuple[Any, ...]]:
        """What each row reads of its sequence's images, as a span of the decoder takes it."""
        from inference.engine.runners.openvino.prompt_images import ImageRows, no_rows, places_of

        manifest = self._bundle.manifest
        if manifest.images is None:
            return [()] * len(tokens)
        (seen,) = (feeds[e.step_input] for e in manifest.states if e.counted_token is not None)
        source = manifest.graphs["step"].input(Role.SOURCE)
        assert source is not None
        counts, width = feeds[source.name], len(tokens) // len(feeds[source.name])
        token_id, found = manifest.images.token_id, []
        for row, (before, new) in enumerate(zip(seen[:, 0], tokens, strict=True)):
            held = {name: feeds[name][row // width] for name in no_rows(manifest)}
            rows = {name: value[: counts[row // width]] for name, value in held.items()}
            past = np.full(before, token_id)  # image tokens of earlier calls, whatever lay between
            read = ImageRows(
                np.concatenate([past, new]), token_id, rows, places=places_of(manifest)
            )
            span = len(past), len(past) + len(new)
            found.append((read.of(*span), read.shifts(*span)))
        return found

    def _counts(self, feeds: Feeds, tokens: Array, last: Array) -> dict[str, Array]:
        """The states that count image tokens, behind a call; this runner has no such outputs."""
        states = [e for e in self._bundle.manifest.states if e.counted_token is not None]
        is_read = np.arange(tokens.shape[1]) <= last[:, None]
        return {
            str(each.step_output): feeds[each.step_input]
            + np.sum((tokens == each.counted_token) & is_read, axis=1, keepdims=True)
            for each in states
        }


RESIDENT_BYTES = 512 << 20
"""Files of graphs that verification keeps loaded at once."""


class TimedRun:
    """The time of each call of a `Run`, as the probe happens to call it."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = {}

    def of(self, run: Run) -> Run:
        """The same calls, timed."""

        def run_timed(key: str, feeds: Feeds) -> dict[str, Array]:
            started_s = time.perf_counter()
            outputs = run(key, feeds)
            self._spent.setdefault(key, []).append(1000 * (time.perf_counter() - started_s))
            return outputs

        return run_timed

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
            # Without an arena memory of a call is freed when it ends; numbers do not depend on it.
            options = onnxruntime.SessionOptions()
            options.enable_cpu_mem_arena = False
            session = open_cpu_session(self._files[key], options)
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
