"""Whether this processor multiplies unsigned by signed bytes exactly, and what to do where not (D123).

int8 products are unsigned activations by signed weights. AMX and VNNI add such products in 32 bits.
x86 processors without them (AVX2, AVX-512 of 2017) add pairs in 16 bits, which saturate: scores are
wrong, and no error says so. There ONNX Runtime can store the same weights unsigned, with zero point
128, as it loads a graph: another kernel multiplies those exactly, to the same integers. Elsewhere
unsigned weights are slower, so the form follows the processor and the bundle is one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime

_INPUTS, _OUTPUTS = 64, 32
_ROWS = (1, 8)
"""A single row has a kernel of its own."""
_UNSIGNED_WEIGHTS = "session.x64quantprecision"
"""ONNX Runtime: "precision mode" of graphs with int8 weights."""


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
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    exact = 255 * 127 * _INPUTS
    return any(
        (session.run(None, {"x": np.full((rows, _INPUTS), 255, np.uint8)})[0] != exact).any()
        for rows in _ROWS
    )


def exact_products(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """The options, by which int8 products of a session are exact on this processor."""
    if products_saturate():
        options.add_session_config_entry(_UNSIGNED_WEIGHTS, "1")
    return options
