"""int8 weights of a graph as unsigned bytes, for processors whose products saturate (D123).

The bits of a signed byte and of the same number plus 128 differ in the highest one alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

_ZERO_POINTS = {"MatMulIntegerToFloat": 5, "DynamicQuantizeMatMul": 3}
"""Operator → position of its weight's zero point; the weight is the second input of each."""
_ZERO = "unsigned_zero"
_FLIP = np.uint8(128)


def has_products_of_bytes(graph: GraphProto) -> bool:
    """Whether a graph multiplies activations by int8 weights."""
    return any(node.op_type in _ZERO_POINTS for node in graph.node)


def use_unsigned_weights(graph: GraphProto, folder: Path) -> None:
    """Changes the weights of all products in place; they lie in the graph then.

    Args:
        folder: Of the weights that lie beside the graph.
    """
    turned = {node.output[0]: node for node in graph.node if node.op_type == "Transpose"}
    readers: list[tuple[NodeProto, int]] = []
    for node in graph.node:
        if node.op_type in _ZERO_POINTS:
            transposition = turned.get(node.input[1])
            readers.append((node, 1) if transposition is None else (transposition, 0))
            position = _ZERO_POINTS[node.op_type]
            node.input.extend([""] * (position + 1 - len(node.input)))
            node.input[position] = _ZERO
    reading = {(id(node), position) for node, position in readers}
    others = {
        name
        for node in graph.node
        for position, name in enumerate(node.input)
        if (id(node), position) not in reading
    }
    names = {node.input[position] for node, position in readers}
    for tensor in [each for each in graph.initializer if each.name in names]:
        name = tensor.name
        unsigned = _numbers(tensor, folder).view(np.uint8) ^ _FLIP
        if name not in others:
            tensor.CopyFrom(numpy_helper.from_array(unsigned, name))
            continue
        added = f"{name}_unsigned"  # of a table that tokens are looked up in, too
        graph.initializer.append(numpy_helper.from_array(unsigned, added))
        for node, position in readers:
            if node.input[position] == name:
                node.input[position] = added
    graph.initializer.append(numpy_helper.from_array(np.array(_FLIP), _ZERO))


def _numbers(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    if not uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    place = ExternalDataInfo(tensor)
    offset, shape = place.offset or 0, tuple(tensor.dims)
    return np.memmap(folder / place.location, np.int8, "r", offset=offset, shape=shape)
