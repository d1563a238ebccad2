"""Twins' bundles for CUDA, from the graphs that all tests share; and small graphs by hand."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.graphs.to_onnx import OPSET, to_onnx
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report, verify
from export.precision import Precision
from export.targets.cuda.lowering import finish_cuda, for_cuda
from export.targets.cuda.substitutes import substitute
from inference.bundle.manifest import Bundle
from tests.export.conftest import Bundles, Twins
from tests.export.twin import EXPORTED

OWN_OPERATORS = {
    *("bahdanau", "rnn-encoder", "rnn-seq2seq", "rnn-lm", "pix2struct"),
    *("t5", "umt5", "longt5", "switch_transformers"),
}
"""Whose graphs for CUDA are not those for the CPU in float32."""


def on_cuda(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> tuple[Bundle, Report]:
    """A twin's bundle for CUDA, through the gate."""
    given, graphs = bundles(name, EXPORTED), twins(name, EXPORTED).graphs()
    manifest = given.manifest.model_copy(update={"device": "cuda", "precision": precision.value})
    staged = Bundle(folder / "stage" / manifest.name, manifest)
    shutil.copytree(given.folder.parent, folder / "stage")
    report = Report()
    for key, lowering in graphs.lowerings.items():
        path, wanted = bundle_path(staged, key), for_cuda(key, lowering, precision)
        if name in OWN_OPERATORS or wanted.is_fused != lowering.is_fused:
            to_onnx(wanted, path)
        substitute(path, key)
    if name in OWN_OPERATORS or precision is Precision.FP32:
        verify(graphs, staged, report)
    return replace(staged, manifest=finish_cuda(report, graphs, staged, precision)), report


TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}

Port = tuple[str, str, Sequence[int | str]]
"""Name, type, shape."""


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str] | str, **more: Any
) -> NodeProto:
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    return helper.make_node(operator, list(inputs), names, **more)


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, Any] | None = None,
    opset: int = OPSET,
) -> Path:
    """Writes a graph; constants are arrays or tensors."""
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
        for name, value in (constants or {}).items()
    ]
    graph = helper.make_graph(
        nodes,
        "by_hand",
        [helper.make_tensor_value_info(n, TYPES[t], s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, TYPES[t], s) for n, t, s in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Random numbers, float32."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return (scale * drawn).astype(np.float32)
