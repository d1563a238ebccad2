"""Whether `config.pbtxt` and an ONNX graph say the same of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
"""Triton's data types and ONNX Runtime's names for them."""


def check_binding(
    kind: str, configured: Iterable[dict[str, Any]], graph: Sequence[Any], *, batched: bool
) -> None:
    """Refuse a configuration that the graph contradicts, as the native backend does at load.

    Args:
        kind: "input" or "output", for the message.
        configured: The configuration's entries, as Triton's JSON.
        graph: `InferenceSession.get_inputs()` or `get_outputs()`.
        batched: Whether every shape starts with a batch dimension that `dims` leaves out.

    Raises:
        ValueError: an unknown name, a graph input left out, another data type or shape.
    """
    nodes = {node.name: node for node in graph}
    entries = {entry["name"]: entry for entry in configured}
    if unknown := sorted(entries.keys() - nodes.keys()):
        raise ValueError(f"unexpected {kind} {unknown}, the graph has {sorted(nodes)}")
    if kind == "input" and (missing := sorted(nodes.keys() - entries.keys())):
        raise ValueError(f"the graph needs {kind} {missing}, which the configuration leaves out")
    for name, entry in entries.items():
        _check_tensor(f"{kind} {name!r}", entry, nodes[name], batched)


def _check_tensor(tensor: str, entry: dict[str, Any], node: Any, batched: bool) -> None:
    expected = _TYPES.get(entry["data_type"])
    if expected != node.type:
        raise ValueError(
            f"{tensor}: the configuration says {entry['data_type']}, the graph has {node.type}"
        )
    dims = [int(size) for size in entry.get("reshape", entry).get("shape", entry["dims"])]
    configured = [-1, *dims] if batched else dims
    graph = [size if isinstance(size, int) else -1 for size in node.shape]
    if batched and (not graph or graph[0] != -1):
        raise ValueError(
            f"{tensor}: max_batch_size > 0 needs a dynamic first dimension, the graph has {graph}"
        )
    # A fixed size of the graph has to be promised, or a request would fail only when it runs.
    fits = len(graph) == len(configured) and all(
        theirs in (-1, ours) for theirs, ours in zip(graph, configured, strict=True)
    )
    if not fits:
        raise ValueError(f"{tensor}: the configuration says {configured}, the graph has {graph}")


def element_type(node: Any) -> Any:
    """The numpy type of a graph's input or output: "tensor(float16)" is float16."""
    name = node.type.removeprefix("tensor(").removesuffix(")")
    return {"float": np.float32, "double": np.float64, "string": np.object_}.get(name, name)
