"""Operators in a form that CUDA has a kernel for, or one kernel instead of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

from export.graphs.external_data import open_graph, save
from export.targets.cuda.signature import CONTRIBUTED, Types, opset_of, value_types

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
    _replace_nodes(graph, nodes)
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
    _replace_nodes(graph, nodes)
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


def _replace_nodes(graph: GraphProto, nodes: Collection[NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)
