"""Inputs that CUDA's kernels read on the host: sizes, axes, counts.

A value there that the device computes is copied to the host in the middle of a call, which then
cannot be captured as a graph. The reverse holds for an input of the graph that lies on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from onnx import GraphProto, NodeProto

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
