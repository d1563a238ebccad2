"""Where ONNX Runtime's CUDA provider places the nodes of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_COPIES = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Placement:
    """One graph's.

    Attributes:
        nodes: Provider → name → operator, of the nodes that it was assigned.
        copies: Nodes that copy between host and device, which ONNX Runtime added.
    """

    nodes: dict[str, dict[str, str]]
    copies: int

    def operators(self, provider: str) -> Counter[str]:
        """Operators of a provider."""
        return Counter(self.nodes.get(provider, {}).values())


def place(path: Path, folder: Path, *, is_optimised: bool, **options: str) -> Placement:
    """The placement of a graph.

    Args:
        folder: For the graph as ONNX Runtime runs it.
        is_optimised: Whether operators are fused first, as in serving.
        options: Of the CUDA provider.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings.optimized_model_filepath = str(folder / "placed.onnx")
    if not is_optimised:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers: list[Any] = [(CUDA, options), CPU]
    session = onnxruntime.InferenceSession(str(path), settings, providers=providers)
    assert session.get_providers()[0] == CUDA
    nodes: dict[str, dict[str, str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found = {node.name: node.op_type for node in part.get_nodes()}
        nodes.setdefault(part.ep_name, {}).update(found)
    model = onnx.load(str(folder / "placed.onnx"), load_external_data=False)
    return Placement(nodes, sum(node.op_type in _COPIES for node in _all_nodes(model.graph)))


def _all_nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)
