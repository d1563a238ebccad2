"""Which nodes of a graph CUDA computes: all of them, but for arithmetic with shapes on the host.

A node without a CUDA kernel would run on the CPU, its inputs and outputs copied there and back in
each call, and a graph with such a copy cannot be captured. So it is an error of the export.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from onnx import GraphProto, NodeProto

from export.graphs.external_data import open_graph
from export.targets.cuda.kernels import NEEDS_CUDNN, has_kernel, restriction
from export.targets.cuda.signature import Types, float_type, opset_of, signature, value_types
from inference.errors import SetupError

# Inputs that CUDA's kernels read on the host: sizes, axes, counts.
#
# A value there that the device computes is copied to the host in the middle of a call, which then
# cannot be captured as a graph. The reverse holds for an input of the graph that lies on the host.

_FIRST_ON = range(1, 16)
HOST_INPUTS: dict[str, Collection[int]] = {
    **dict.fromkeys(("Slice", "Pad", "Resize"), _FIRST_ON),
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split", "TopK"), (1,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"), (1,)),
    **dict.fromkeys(("CumSum", "Trilu", "Clip"), _FIRST_ON),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "OneHot": (1,),
    "GroupQueryAttention": (6,),  # total_sequence_length
}
"""Operator → positions of the inputs that its CUDA kernel reads on the host."""


def copied(graph: GraphProto, shapes: Collection[str]) -> Counter[str]:
    """What would be copied between host and device in each call; empty if nothing is.

    Args:
        shapes: Values that follow from shapes and constants alone, which the host has.
    """
    produced = {name: node for node in graph.node for name in node.output}
    on_host = {*shapes, *(tensor.name for tensor in graph.initializer)}
    read_on_host: set[str] = set()
    found: Counter[str] = Counter()
    for node in graph.node:
        for name in _read_on_host(node):
            maker = produced.get(name)
            read_on_host.add(name)
            if maker is not None and name not in on_host and maker.op_type != "Constant":
                found[f"a result of {maker.op_type} that {node.op_type} reads on the host"] += 1
    on_host_inputs = read_on_host & {value.name for value in graph.input} - on_host
    for node in graph.node:
        on_device = set(node.input) - set(_read_on_host(node))
        for name in sorted(on_device & on_host_inputs):
            found[f"{name}, which {node.op_type} reads on the device and others on the host"] += 1
    return found


def _read_on_host(node: NodeProto) -> list[str]:
    places = HOST_INPUTS.get(node.op_type, ())
    return [name for place, name in enumerate(node.input) if place in places]


SHAPE_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Cast", "Identity", "Range"),
        *("Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Split", "Expand"),
        *("ConstantOfShape", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not"),
        *("And", "Or", "Where", "Shape", "Size", "ReduceProd", "ReduceMax", "ReduceSum", "Pow"),
    }
)
"""Operators that may run on the host where nothing but shapes and constants feeds them."""

_INTEGERS = frozenset({"int64", "int32", "bool"})


@dataclass
class Assignment:
    """Where the nodes of one graph run.

    Attributes:
        device: Operator → nodes on the device.
        host: Operator → nodes on the host, arithmetic with shapes.
        types: Float type → nodes on the device that compute in it.
        movable: Operator → nodes that ONNX Runtime may place on the host though they have a kernel:
            arithmetic with shapes.
    """

    device: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    movable: Counter[str] = field(default_factory=Counter)

    @property
    def cudnn(self) -> list[str]:
        """Operators on the device that need cuDNN."""
        return sorted(NEEDS_CUDNN & self.device.keys())


def assign(path: Path, key: str) -> Assignment:
    """Where ONNX Runtime's CUDA provider would run each node.

    Args:
        key: The graph's name, for the error.

    Raises:
        SetupError: nodes have no kernel, or values would be copied between host and device in each
            call; names operators, types and the graph.
    """
    model = open_graph(path)
    opset, found, missing = opset_of(model), Assignment(), Counter[str]()
    copies = Counter[str]()
    for graph, types in value_types(model.graph, opset):
        shapes = _shape_values(graph, types)
        copies += copied(graph, shapes)
        for node in graph.node:
            bound = _bind(node, types, opset)
            refused = restriction(node)
            is_movable = shapes.issuperset(node.output) and node.op_type in SHAPE_ARITHMETIC
            if refused is not None:
                missing[f"{node.op_type} with {refused}"] += 1
            elif bound is not None and has_kernel(node.domain, node.op_type, *bound):
                found.device[node.op_type] += 1
                found.types.update(float_type(node, types))
                found.movable[node.op_type] += is_movable
            elif is_movable:
                found.host[node.op_type] += 1
            elif node.op_type != "Constant":
                missing[_describe(node, types, bound)] += 1
    if missing:
        raise SetupError(f"CUDA has no kernel for nodes of {key}: {list_counts(missing)}")
    if copies:
        raise SetupError(
            f"{key} copies between host and device in each call: {list_counts(copies)}"
        )
    return found


def list_counts(counted: Counter[str]) -> str:
    """`MatMul (3), Softmax (1)`."""
    return ", ".join(f"{what} ({count})" for what, count in sorted(counted.items()))


def _bind(node: NodeProto, types: Types, opset: int) -> tuple[int, dict[str, str]] | None:
    """Version of the operator and the types of its constraints."""
    known = signature(node.op_type, node.domain, opset)
    return None if known is None else (known.since, known.bound(node, types))


def _shape_values(graph: GraphProto, types: Types) -> set[str]:
    """Integers that follow from shapes and constants alone."""
    found = {tensor.name for tensor in graph.initializer if types[tensor.name] in _INTEGERS} | {""}
    for node in graph.node:
        is_shape = node.op_type in ("Shape", "Size", "Constant")
        if all(types.get(name) in _INTEGERS for name in node.output) and (
            is_shape or found.issuperset(node.input)
        ):
            found.update(node.output)
    return found


def _describe(node: NodeProto, types: Types, bound: tuple[int, dict[str, str]] | None) -> str:
    """`Conv-11 of bfloat16`: operator, version and types of a node."""
    listed = dict.fromkeys(types[name] for name in node.input if name in types)
    version = f"-{bound[0]}" if bound is not None else ""
    return f"{node.op_type}{version} of {' and '.join(listed) or 'no inputs'}"
