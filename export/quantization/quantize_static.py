"""Int8 for OpenVINO, with fixed scales.

OpenVINO fuses what ONNX Runtime's CPU kernels do in separate passes. Its int8 takes the scales of
activations from the graph: weights with one scale an output channel, activations with one a tensor,
from calibration by NNCF (post-training quantisation with SmoothQuant, Xiao et al. 2023, arXiv
2211.10438, and bias correction). Fixed scales cannot depend on a row's neighbours. Graphs keep to
standard operators (`QuantizeLinear`, `DequantizeLinear`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

from export.graphs.external_data import save
from export.parity.graph_runs import missing_package
from export.parity.parity_inputs import Feeds
from export.quantization.calibrate import stateless_calibration
from export.quantization.quantize import Quantised
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle
from inference.errors import SetupError

SAMPLES = 64
"""Rows that the scales of activations are taken from."""


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
        raise SetupError(missing_package("nncf")) from error
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
