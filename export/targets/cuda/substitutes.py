"""Operators in a form that CUDA has a kernel for, or one kernel instead of several.

cuBLAS has slow kernels alone where the rows of a 16-bit result are not aligned to 16 bytes: of
GPT-2's 50,257 tokens the product took twice as long on an H100 (D70).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    shape_inference,
)

from export.graphs.external_data import open_graph, save
from export.targets.cuda.signature import CONTRIBUTED, Types, bodies, opset_of, value_types

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


_EXTREMA = ("ArgMax", "ArgMin")


def substitute(path: Path, key: str) -> None:
    """Rewrites an exported float32 file in place, if it has such operators.

    `ArgMax` of integers reads them as float32, which holds token ids and masks exactly. The sum of
    a residual connection and the norm that follows become one `SkipLayerNormalization` (D70), in
    `step` alone: encoders with it crash ONNX Runtime 1.32 on the CPU, where the gate runs float16
    (DeBERTa's and XLNet's).

    Args:
        key: Of the graph.
    """
    model = open_graph(path)
    changed = 0
    for graph, types in list(value_types(model.graph, opset_of(model))):
        changed += _cast_integer_extrema(graph, types)
    if key == "step":
        changed += _fuse_residual_norms(model)
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


def _fuse_residual_norms(model: ModelProto) -> int:
    """Makes one node of projection bias, residual sum and norm; returns how many there were.

    The sum stays an output, for the next residual connection. Only a sum with what a norm has read
    or returned is fused: both have the shape of the hidden states, which the kernel requires. It
    takes hidden states of two or three axes.
    """
    graph = model.graph
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    reads = Counter(name for node in graph.node for name in node.input)
    reads.update(value.name for value in graph.output)
    ranks = _infer_ranks(model)
    hidden_states: set[str] = set()
    norms: dict[str, NodeProto] = {}  # sum → its norm, where the two become one node
    branches: dict[str, tuple[NodeProto, str]] = {}  # sum → bias addition, other term
    for node in graph.node:
        if not _is_norm(node, constants):
            continue
        summed = node.input[0]
        width = constants[node.input[1]]
        found = _branch(makers.get(summed), makers, constants, width, hidden_states)
        if found is not None and summed not in norms and ranks.get(summed) in (2, 3):
            norms[summed], branches[summed] = node, found
        hidden_states |= {summed, node.output[0]}
    if not norms:
        return 0
    dropped = {norm.output[0] for norm in norms.values()}
    dropped |= {added.output[0] for added, _ in branches.values() if reads[added.output[0]] == 1}
    nodes = []
    for node in graph.node:
        name = node.output[0] if node.output else ""
        if name in norms:
            nodes.append(_skip_norm(name, norms[name], *branches[name]))
        elif name not in dropped:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    if all(entry.domain != CONTRIBUTED for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIBUTED, 1))
    return len(norms)


def _infer_ranks(model: ModelProto) -> dict[str, int]:
    """Value → its number of axes, as far as that follows."""
    known = ModelProto()
    known.CopyFrom(model)
    for node in known.graph.node:
        if node.op_type in ("MultiHeadAttention", "GroupQueryAttention"):  # ONNX knows neither
            attended = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [None] * 3)
            known.graph.value_info.append(attended)
    found = shape_inference.infer_shapes(known, data_prop=True).graph.value_info
    return {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in found
        if value.type.tensor_type.HasField("shape")
    }


def _is_norm(node: NodeProto, constants: Mapping[str, tuple[int, ...]]) -> bool:
    """A layer norm over the last axis, with weights."""
    axes = [each.i for each in node.attribute if each.name == "axis"]
    return (
        node.op_type == "LayerNormalization"
        and axes in ([], [-1])
        and len(node.output) == 1
        and all(len(constants.get(name, ())) == 1 for name in node.input[1:])
    )


def _branch(
    total: NodeProto | None,
    makers: Mapping[str, NodeProto],
    constants: Mapping[str, tuple[int, ...]],
    width: tuple[int, ...],
    hidden_states: Collection[str],
) -> tuple[NodeProto, str] | None:
    """The biased projection of a residual sum and its other term; None if it is no such sum."""
    if total is None or total.op_type != "Add":
        return None
    for projected, other in (total.input, reversed(total.input)):
        added = makers.get(projected)
        if added is None or added.op_type != "Add" or other not in hidden_states:
            continue
        product = makers.get(added.input[0])
        is_bias = constants.get(added.input[1]) == width
        if is_bias and product is not None and product.op_type == "MatMul":
            return added, other
    return None


def _skip_norm(total: str, norm: NodeProto, added: NodeProto, other: str) -> NodeProto:
    """The node; its fourth output is the sum."""
    weights = [*norm.input[1:], ""][:2]
    epsilon = [each.f for each in norm.attribute if each.name == "epsilon"] or [1e-5]
    return helper.make_node(
        "SkipLayerNormalization",
        [added.input[0], other, *weights, added.input[1]],
        [norm.output[0], "", "", total],
        domain=CONTRIBUTED,
        epsilon=epsilon[0],
    )
