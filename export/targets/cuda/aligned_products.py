"""Products with a vocabulary of any size, in the kernels for sizes that are multiples of 8.

cuBLAS has slow kernels alone where the rows of a 16-bit result are not aligned to 16 bytes: of
GPT-2's 50,257 tokens the product took twice as long on an H100 (D70).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from export.targets.cuda.signature import bodies

_ALIGNED = 8  # elements of 16 bits
_LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_LEAST = 1024  # columns: smaller products take as long as the slice


def align_products(graph: GraphProto) -> int:
    """Pads weights of `Gemm` nodes with zeros and cuts their results; returns how many there were.

    Args:
        graph: Weights of 16 bits lie in it.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    products = _find_products(graph, tensors)
    nodes: list[NodeProto] = []
    aligned = 0
    rows = {name: tensor.dims[0] for name, tensor in tensors.items() if tensor.dims}
    for index, node in enumerate(graph.node):
        nodes.append(node)
        columns = rows[node.input[1]] if index in products else 0
        if columns < _LEAST or columns % _ALIGNED == 0:
            continue
        for name in node.input[1:]:
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


def _find_products(graph: GraphProto, tensors: Mapping[str, TensorProto]) -> set[int]:
    """Indices of the products whose weights only they and embeddings read."""
    products = {index for index, node in enumerate(graph.node) if _is_product(node, tensors)}
    while True:
        others = {
            name
            for index, node in enumerate(graph.node)
            for name in _read_otherwise(node, is_product=index in products)
        }
        kept = {each for each in products if others.isdisjoint(graph.node[each].input[1:])}
        if kept == products:
            return products
        products = kept


def _is_product(node: NodeProto, tensors: Mapping[str, TensorProto]) -> bool:
    """A product with transposed weights of 16 bits and, perhaps, a bias of one axis."""
    transposes = any(each.name == "transB" and each.i for each in node.attribute)
    if node.op_type != "Gemm" or not transposes:
        return False
    found = [tensors.get(name) for name in node.input[1:]]
    axes = [None if each is None else len(each.dims) for each in found]
    is_low = all(each is not None and each.data_type in _LOW for each in found)
    return is_low and axes in ([2], [2, 1])


def _read_otherwise(node: NodeProto, *, is_product: bool) -> Iterator[str]:
    """Inputs, those of bodies too, of which a node reads more than rows by their numbers."""
    if is_product:
        yield node.input[0]
    elif node.op_type == "Gather" and all(each.i == 0 for each in node.attribute):
        yield node.input[1]
    else:
        yield from node.input
    for body in bodies(node):
        for inside in body.node:
            yield from _read_otherwise(inside, is_product=False)


def _pad(tensor: TensorProto, columns: int) -> None:
    """Appends rows of zeros, which readers of single rows (embeddings) do not read."""
    if tensor.dims[0] != columns:
        return  # of another product already
    missing = -columns % _ALIGNED
    tensor.raw_data += bytes(missing * len(tensor.raw_data) // columns)
    tensor.dims[0] = columns + missing
