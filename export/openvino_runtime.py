"""Bundles for OpenVINO: their graphs as they will be served, and int8 with fixed scales.

OpenVINO fuses what ONNX Runtime's CPU kernels do in separate passes. Its int8 takes the scales of
activations from the graph: weights with one scale an output channel, activations with one a tensor,
from calibration by NNCF (post-training quantisation with SmoothQuant, Xiao et al. 2023, arXiv
2211.10438, and bias correction). Fixed scales cannot depend on a row's neighbours. Graphs keep to
standard operators (`QuantizeLinear`, `DequantizeLinear`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.architecture import Graphs, Lowering
from export.calibrate import stateless_calibration
from export.external_data import save
from export.framing import Framing
from export.probe import Array, Feeds
from export.quantize import Precision, Quantised, Runtime
from export.triton_config import stateless_config
from serving.bundle import Bundle, Manifest
from serving.errors import SetupError

SAMPLES = 64
"""Rows that the scales of activations are taken from."""


def check_runtime(
    graphs: Graphs, runtime: Runtime, precision: Precision, *, is_calibrated: bool = False
) -> None:
    """Refuses combinations that nothing serves.

    Args:
        is_calibrated: Whether the user gives samples for calibration.

    Raises:
        SetupError: a generator for OpenVINO, a precision that the runtime lacks, or samples that
            nothing is calibrated on.
    """
    if is_calibrated and "step" in graphs.lowerings:
        raise SetupError(
            "--calibration is for stateless models: the int8 cache of a generator is calibrated on "
            "what the model itself generates"
        )
    if is_calibrated and (precision is not Precision.INT8 or runtime is Runtime.ONNXRUNTIME):
        raise SetupError(
            "--calibration is for --precision int8 with --runtime openvino or auto, whose scales "
            "are fixed: other graphs need no data"
        )
    if runtime is Runtime.OPENVINO and "step" in graphs.lowerings:
        raise SetupError("--runtime openvino is for stateless models: this one generates tokens")
    if runtime is Runtime.TENSORRT and "step" in graphs.lowerings:
        raise SetupError("--runtime tensorrt is for stateless models: this one generates tokens")
    if runtime in (Runtime.AUTO, Runtime.TENSORRT):
        return
    lacks = Precision.BF16 if runtime is Runtime.ONNXRUNTIME else Precision.INT8_FAST
    if precision is lacks:
        raise SetupError(f"--precision {precision} is not available with --runtime {runtime}")


def lowered(lowering: Lowering, runtime: Runtime) -> Lowering:
    """A graph's lowering for a runtime: OpenVINO has none of ONNX Runtime's fused operators."""
    return lowering if runtime is Runtime.ONNXRUNTIME else replace(lowering, is_fused=False)


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
            from serving.backends.triptych_openvino.compiled_graphs import CompiledGraphs
        except ImportError as error:
            raise SetupError(_missing("openvino")) from error
        return CompiledGraphs(self._files[key], _config(self._manifest, key, self._precision))


def random_samples(bundle: Bundle, key: str) -> list[Feeds]:
    """Random texts with their special tokens, or block images: where a user gives none."""
    manifest = bundle.manifest
    graph, framing = manifest.graphs[key], Framing.of(bundle)
    return list(_rows(stateless_calibration(manifest, graph, SAMPLES, framing)))


def quantize_static(path: Path, samples: Sequence[Feeds]) -> Quantised:
    """Rewrites an exported file in place.

    Args:
        path: float32, of standard operators.
        samples: Inputs that the scales are taken from, one row each.

    Raises:
        SetupError: NNCF is not installed, or cannot quantise the graph.
    """
    switch_telemetry_off()
    try:
        import nncf
    except ImportError as error:
        raise SetupError(_missing("nncf")) from error
    model = onnx.load(str(path))
    with _quiet():
        try:
            model = nncf.quantize(
                model,
                nncf.Dataset(samples),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(samples),
                ignored_scope=nncf.IgnoredScope(names=stems(model.graph)),
            )
        except (RuntimeError, ValueError, nncf.ValidationError) as error:
            raise SetupError(f"NNCF cannot quantise {path.name}: {error}") from error
    save(model, path)
    kept = sum(t.ByteSize() for t in model.graph.initializer if t.data_type == t.FLOAT)
    return Quantised(layers=_int8_products(model.graph), tables=0, kept_bytes=kept)


def stems(graph: onnx.GraphProto) -> list[str]:
    """Convolutions that read the pixels, such as a patch embedding: they stay float32.

    They are a hundredth of the work, and what they lose no later layer can restore: with the patch
    embedding of the example ViT in int8, 46 % of its classes change, without it 1 %.
    """
    weights = {tensor.name for tensor in graph.initializer}
    raw = {port.name for port in graph.input} | weights
    found = []
    for node in graph.node:
        reads_raw = all(name in raw for name in node.input if name)
        if node.op_type == "Conv" and node.input[0] in raw:
            found.append(node.name)
        elif reads_raw and node.op_type not in ("MatMul", "Gemm"):
            raw.update(node.output)
    return found


def _int8_products(graph: onnx.GraphProto) -> int:
    """Number of products whose two factors are int8: linear layers, and those of attention."""
    int8 = {name for n in graph.node if n.op_type == "DequantizeLinear" for name in n.output}
    products = (node for node in graph.node if node.op_type in ("MatMul", "Gemm"))
    return sum(int8.issuperset(node.input[:2]) for node in products)


def switch_telemetry_off() -> None:
    """NNCF reports each use to its maker unless the package that sends is missing."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def _config(manifest: Manifest, key: str, precision: Precision) -> dict[str, Any]:
    """The configuration of one graph, as Triton's JSON."""
    text = stateless_config(
        manifest.parts[key], manifest.graphs[key], runtime="openvino", precision=precision.value
    )
    message = text_format.Parse(text, pb.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def _rows(feeds: list[Feeds]) -> Iterator[Feeds]:
    """Batches of one, which is how NNCF gathers statistics."""
    for feed in feeds:
        count = len(next(iter(feed.values())))
        for row in range(count):
            yield {name: np.ascontiguousarray(value[row : row + 1]) for name, value in feed.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without NNCF's notes; its progress bars stay, because large models take a minute."""
    import nncf  # noqa: F401  (sets its logger's level)

    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)  # set_log_level changes handlers, too
    try:
        yield
    finally:
        logger.setLevel(level)


def _missing(package: str) -> str:
    return f"--runtime openvino needs {package}: pip install 'triptych[openvino]'"
