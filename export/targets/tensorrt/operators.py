"""What TensorRT parses, from a committed list: no TensorRT is needed to look it up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from export.graphs.external_data import open_graph
from export.targets.cuda.kernels import Kernels
from export.targets.cuda.signature import CONTRIBUTED, opset_of, value_types
from inference.errors import SetupError

LIST = Path(__file__).with_name("operators.json")
_FLOATS = ("float32", "float16", "bfloat16")
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
            floats = [types[name] for name in (*node.output, *node.input) if name in types]
            found.update([each for each in floats if each in _FLOATS][:1])
    if missing:
        listed = ", ".join(f"{what} ({count})" for what, count in sorted(missing.items()))
        hint = ": export standard operators" if any(CONTRIBUTED in each for each in missing) else ""
        raise SetupError(f"TensorRT has no operator for nodes of {key}: {listed}{hint}")
    return found
