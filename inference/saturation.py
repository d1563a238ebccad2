"""Sessions on the CPU whose products of bytes are exact on every processor (D123).

int8 products are unsigned activations by signed weights. AMX and VNNI add such products in 32 bits.
x86 processors without them (AVX2, AVX-512 of 2017) add pairs in 16 bits, which saturate: scores are
wrong, and no error says so. There the same weights are read as unsigned bytes with zero point 128:
another kernel of ONNX Runtime multiplies those exactly, to the same integers. Elsewhere that kernel
is slower, so the form follows the processor when a graph is loaded, and the bundle is one.

ONNX Runtime has such a rewrite (`session.x64quantprecision`); 1.32 fails at a weight that two
products share.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from inference.process_limits import thread_count

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
"""Setting of a session: the folder of the weights that lie beside a graph given as bytes."""
_CPU = "CPUExecutionProvider"
_ZERO_POINTS = {"MatMulIntegerToFloat": 5, "DynamicQuantizeMatMul": 3}
"""Operator → position of its weight's zero point; the weight is the second input of each."""
_ZERO = "unsigned_zero"
_INPUTS, _OUTPUTS = 64, 32
_ROWS = (1, 8)
"""A single row has a kernel of its own."""


def open_cpu_session(
    model: Path | bytes, options: onnxruntime.SessionOptions, **settings: Any
) -> onnxruntime.InferenceSession:
    """A session on the CPU. Weights of bytes have the form that this processor multiplies exactly.

    ONNX Runtime converts them as it loads the graph, and then holds as much as without.

    Args:
        model: A file, or a graph whose weights lie in the folder that `EXTERNAL_DATA` names.
        options: Their numbers of threads become those of `thread_count`.
        settings: Of `InferenceSession`.

    Raises:
        Exception: the graph does not load; the runtime's exceptions share no base class.
    """
    options.intra_op_num_threads = thread_count(options.intra_op_num_threads)
    options.inter_op_num_threads = thread_count(options.inter_op_num_threads)
    if products_saturate():
        from onnx import load, load_from_string

        if isinstance(model, Path):
            graph = load(model, load_external_data=False)
            _read_weights_from(options, model.parent)
        else:
            graph = load_from_string(model)
        if _use_unsigned_weights(graph):
            model = graph.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=[_CPU], **settings)


def _read_weights_from(options: onnxruntime.SessionOptions, folder: Path) -> None:
    """ONNX Runtime warns of a setting that is made twice: graphs of a bundle share options."""
    try:
        is_set = options.get_session_config_entry(EXTERNAL_DATA) == str(folder)
    except RuntimeError:
        is_set = False
    if not is_set:
        options.add_session_config_entry(EXTERNAL_DATA, str(folder))


@cache
def products_saturate() -> bool:
    """Whether products of unsigned by signed bytes saturate here: computed, not looked up."""
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("MatMulInteger", ["x", "weight"], ["y"])
    weight = np.full((_INPUTS, _OUTPUTS), 127, np.int8)
    graph = helper.make_graph(
        [node],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ("rows", _INPUTS))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ("rows", _OUTPUTS))],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[_CPU])
    exact = 255 * 127 * _INPUTS
    return any(
        (session.run(None, {"x": np.full((rows, _INPUTS), 255, np.uint8)})[0] != exact).any()
        for rows in _ROWS
    )


def _use_unsigned_weights(model: ModelProto) -> bool:
    """Whether a graph has products of bytes; their weights are unsigned then.

    The bits of a signed byte and of the same number plus 128 differ in the highest one alone.
    """
    from onnx import numpy_helper

    graph = model.graph
    weights = {n.input[1] for n in graph.node if n.op_type in _ZERO_POINTS}
    if not weights:
        return False
    graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), _ZERO))
    nodes = list(_with_conversions(graph, weights))
    del graph.node[:]
    graph.node.extend(nodes)
    return True


def _with_conversions(graph: GraphProto, weights: set[str]) -> Iterator[NodeProto]:
    """The nodes in order, each weight's conversion behind what produces it."""
    produced = {name for node in graph.node for name in node.output}
    for name in sorted(weights - produced):
        yield from _conversion(name)
    for node in graph.node:
        if node.op_type in _ZERO_POINTS:
            position = _ZERO_POINTS[node.op_type]
            node.input.extend([""] * (position + 1 - len(node.input)))
            node.input[1], node.input[position] = _unsigned(node.input[1]), _ZERO
        yield node
        for name in weights.intersection(node.output):
            yield from _conversion(name)


def _conversion(name: str) -> Iterator[NodeProto]:
    from onnx import TensorProto, helper

    bits = f"{name}_bits"
    yield helper.make_node("Cast", [name], [bits], to=TensorProto.UINT8)
    yield helper.make_node("BitwiseXor", [bits, _ZERO], [_unsigned(name)])


def _unsigned(name: str) -> str:
    return f"{name}_unsigned"
