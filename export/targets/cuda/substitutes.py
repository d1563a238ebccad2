"""Operators without a CUDA kernel for their types, in a form that has one."""

from __future__ import annotations

from pathlib import Path

from onnx import GraphProto, TensorProto, helper

from export.graphs.external_data import open_graph, save
from export.targets.cuda.signature import Types, opset_of, value_types

_EXTREMA = ("ArgMax", "ArgMin")


def substitute(path: Path) -> None:
    """Rewrites an exported float32 file in place, if it has such operators.

    `ArgMax` of integers reads them as float32, which holds token ids and masks exactly.
    """
    model = open_graph(path)
    changed = 0
    for graph, types in list(value_types(model.graph, opset_of(model))):
        changed += _cast_integer_extrema(graph, types)
    if changed:
        save(model, path)


def _cast_integer_extrema(graph: GraphProto, types: Types) -> int:
    """Puts a cast before each search over integers; returns how many there were."""
    nodes, changed = [], 0
    for node in graph.node:
        if node.op_type in _EXTREMA and types[node.input[0]].startswith(("int", "uint")):
            changed += 1
            number = f"{node.output[0]}_numbers"
            nodes.append(helper.make_node("Cast", [node.input[0]], [number], to=TensorProto.FLOAT))
            node.input[0] = number
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return changed
