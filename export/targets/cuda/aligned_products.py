"""Products with a vocabulary of any size, in the kernels for sizes that are multiples of 8.

cuBLAS has slow kernels alone where the rows of a 16-bit result are not aligned to 16 bytes: of
GPT-2's 50,257 tokens the product took twice as long on an H100 (D122).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

_ALIGNED = 8  # elements of 16 bits
_LEAST = 1024  # columns: smaller products take as long as the slice


def align_products(graph: GraphProto) -> int:
    """Pads weights of `Gemm` nodes with zeros and cuts their results; returns how many there were.

    Args:
        graph: Weights of 16 bits lie in it.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    rows = {name: tensor.dims[0] for name, tensor in tensors.items() if tensor.dims}
    others = {name for node in graph.node for name in _read_otherwise(node)}
    nodes: list[NodeProto] = []
    aligned = 0
    for node in graph.node:
        nodes.append(node)
        weights = _weights(node, tensors)
        if not weights or not others.isdisjoint(weights):
            continue
        columns = rows[weights[0]]
        if columns < _LEAST or columns % _ALIGNED == 0:
            continue
        for name in weights:
            _pad(tensors[name], columns)
        (whole,) = node.output
        node.output[0] = f"{whole}_aligned"
        bounds = {"first": 0, "stop": columns, "axis": 1}
        for name, value in bounds.items():
            array = np.array([value], np.int64)
            graph.initializer.append(numpy_helper.from_array(array, f"{whole}_{name}"))
        inputs = [node.output[0], *(f"{whole}_{name}" for name in bounds)]
        nodes.append(helper.make_node("Slice", inputs, [whole]))
        aligned += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return aligned


def _weights(node: NodeProto, tensors: Mapping[str, TensorProto]) -> list[str]:
    """Names of a product's transposed weights and bias of 16 bits; none of another node."""
    if node.op_type != "Gemm" or not any(
        each.name == "transB" and each.i for each in node.attribute
    ):
        return []
    types = {tensors[name].data_type if name in tensors else None for name in node.input[1:]}
    return [] if types & {None, TensorProto.FLOAT} else list(node.input[1:])


def _read_otherwise(node: NodeProto) -> Iterator[str]:
    """Inputs of which a node reads more than rows by their numbers."""
    if node.op_type == "Gemm":
        yield node.input[0]
    elif node.op_type == "Gather" and all(each.i == 0 for each in node.attribute):
        yield node.input[1]
    else:
        yield from node.input


def _pad(tensor: TensorProto, columns: int) -> None:
    """Appends rows of zeros, which readers of single rows (embeddings) do not read."""
    if tensor.dims[0] != columns:
        return  # of another product already
    missing = -columns % _ALIGNED
    tensor.raw_data += bytes(missing * len(tensor.raw_data) // columns)
    tensor.dims[0] = columns + missing
