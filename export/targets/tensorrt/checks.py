"""What TensorRT does not parse or does not notice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto, numpy_helper

from export.graphs.external_data import open_graph
from export.parity.parity_inputs import Feeds
from export.targets.cuda.assignment import list_counts
from export.targets.cuda.float32_nodes import RANGES
from export.targets.cuda.kernels import Kernels
from export.targets.cuda.signature import CONTRIBUTED, dtype_name, float_type, opset_of, value_types
from inference.bundle.manifest import Graph, Role
from inference.errors import SetupError
from inference.saturation import open_cpu_session

LIST = Path(__file__).with_name("operators.json")
_REFUSED = {
    "float16": frozenset({"GRU", "LSTM", "RNN"}),
    "bfloat16": frozenset({"GRU", "LSTM", "RNN", "HardSwish"}),
}
"""Type → operators that the parser refuses in it (TensorRT-RTX 1.7). Into recurrent ones it mixes
float32 itself."""


@cache
def operators() -> frozenset[str]:
    """ONNX's own operators that the parser has."""
    return frozenset(json.loads(LIST.read_text(encoding="utf-8"))["operators"])


def has_operator(domain: str, operator: str, since: int, bound: Mapping[str, str]) -> bool:
    """Whether TensorRT computes an operator with these types."""
    refused = any(operator in _REFUSED.get(dtype, ()) for dtype in bound.values())
    return domain == "" and operator in operators() and not refused


TENSORRT = Kernels("TensorRT", has_operator)


def check_operators(path: Path, key: str) -> Counter[str]:
    """Refuses a graph with operators that the parser lacks.

    Returns:
        Float type → nodes that compute in it.

    Raises:
        SetupError: names the operators and the graph.
    """
    model = open_graph(path)
    found, missing = Counter[str](), Counter[str]()
    for graph, types in value_types(model.graph, opset_of(model)):
        for node in graph.node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            if domain or node.op_type not in operators():
                missing[f"{domain}.{node.op_type}" if domain else node.op_type] += 1
            found.update(float_type(node, types))
    if missing:
        hint = ": export standard operators" if any(CONTRIBUTED in each for each in missing) else ""
        raise SetupError(
            f"TensorRT has no operator for nodes of {key}: {list_counts(missing)}{hint}"
        )
    return found


def check_constants(path: Path, key: str) -> None:
    """Refuses a bound that its type cannot hold, such as a clamp at 1e-12 that becomes 0.

    A divisor that is clamped at zero is not clamped: an empty row becomes NaN.

    Args:
        path: Of float16 or bfloat16 in part.

    Raises:
        SetupError: names the operator, the type and the graph.
    """
    model = open_graph(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    divisors = _divisors(model)
    for node in model.graph.node:
        if node.op_type not in ("Clip", "Max") or not divisors.intersection(node.output):
            continue
        for name in node.input[1:] if node.op_type == "Clip" else node.input:
            low = dtype_name(constants[name].data_type) if name in constants else ""
            if low not in RANGES or np.prod(constants[name].dims) != 1:
                continue
            bound = abs(float(numpy_helper.to_array(constants[name]).astype(np.float32).item()))
            if bound < RANGES[low][0]:
                raise SetupError(
                    f"a divisor's clamp ({node.op_type}) in {key} is {bound:g} in {low}: it has to "
                    "stay float32"
                )


def _divisors(model: ModelProto) -> set[str]:
    """Values that something is divided by, through casts and layout."""
    passing = ("Cast", "Expand", "Unsqueeze", "Reshape", "Sqrt", "Identity")
    found: set[str] = set()
    for node in reversed(model.graph.node):
        if node.op_type == "Div":
            found.add(node.input[1])
        elif node.op_type in ("Reciprocal", "Log") or (
            node.op_type in passing and found.intersection(node.output)
        ):
            found.add(node.input[0])
    return found


def check_positions(path: Path, graph: Graph, key: str) -> None:
    """Refuses a limit beyond the graph's tables of positions.

    A plan reads beyond the end of a table that is too short; ONNX Runtime's CPU kernels raise. So
    one text of the largest shape is computed there.

    Args:
        path: float32.
        graph: With its profiles.

    Raises:
        SetupError: names the length and ONNX Runtime's reason.
    """
    tokens = graph.input(Role.TOKENS)
    if tokens is None:
        return
    shapes = max(
        ({name: each[2] for name, each in profile.shapes.items()} for profile in graph.profiles),
        key=lambda largest: largest[tokens.name][1],
    )
    length = shapes[tokens.name][1]
    feeds: Feeds = {
        port.name: np.zeros((1, *shapes[port.name][1:]), port.dtype) for port in graph.inputs
    }
    for port in graph.inputs:
        if port.role is Role.LENGTHS:
            feeds[port.name][:] = length
    session = open_cpu_session(path, onnxruntime.SessionOptions())
    try:
        session.run(None, feeds)
    except Exception as error:  # ONNX Runtime's errors share no base
        reason = " ".join(str(error).split())
        raise SetupError(
            f"{key} does not compute {length} tokens, the checkpoint's own limit: {reason}"
        ) from error
