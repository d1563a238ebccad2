"""An int8 cache of keys and values as a rewrite of exported graphs and of their manifest.

GroupQueryAttention rounds new keys and values with one fixed scale a channel as it stores them,
and attends to what it stored, also within the very call that brings them. So nothing depends on
neighbours, nor on the pieces that a prompt is read in. A prefix is rounded in the same way by
`admit`, which computes it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.graphs.external_data import open_graph, save
from export.quantization.calibrate import Scales
from export.quantization.quantize import DOMAIN, LARGEST
from inference.bundle.manifest import Dtype, Growth, Manifest
from inference.bundle.manifest import Tensor as Port

_PAST_KEY, _KEY_SCALE = 3, 12  # inputs of the operator; those of the values follow them
_ATTRIBUTES = {
    "k_quant_type": "PER_CHANNEL",
    "v_quant_type": "PER_CHANNEL",
    "kv_cache_bit_width": 8,
}


def has_fused_cache(path: Path | None) -> bool:
    """Whether a `step` graph's caches go through GroupQueryAttention, which can read int8."""
    return path is not None and any(map(_is_fused, open_graph(path).graph.node))


def _is_fused(node: NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type == "GroupQueryAttention"


def quantize_cache(path: Path, manifest: Manifest, scales: Scales) -> Manifest:
    """Rewrites an exported `step` graph in place, and `admit` where it computes a prefix.

    Args:
        path: Of `step`; its caches are float32, a layer's two go through one GroupQueryAttention.
        scales: Of every APPEND state.

    Returns:
        The manifest that fits the rewritten graph.
    """
    appended = [state for state in manifest.states if state.growth is Growth.APPEND]
    by_input = {state.step_input: scales[state.name] for state in appended}
    ports = {name for state in appended for name in (state.step_input, state.step_output)}
    model = open_graph(path)
    for node in model.graph.node:
        if _is_fused(node):
            _rescale(model.graph, node, by_input)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ports:
            value.type.tensor_type.elem_type = TensorProto.INT8
    save(model, path)
    prefixes = {s.admit_output: scales[s.name] for s in appended if s.admit_output is not None}
    if prefixes:
        _round_outputs(path.with_name(manifest.graphs["admit"].file), prefixes)
    return with_dtype(manifest, ports | set(prefixes), "int8")


def _round_outputs(path: Path, scales: Mapping[str, NDArray[np.float32]]) -> None:
    """Rewrites a graph in place, so that these outputs, (B, G, N, K) each, are int8.

    Args:
        path: Of the graph.
        scales: Output → (G·K,) value of one unit in each channel.
    """
    model = open_graph(path)
    graph = model.graph
    for value in graph.output:
        if value.name not in scales:
            continue
        name, exact = value.name, f"{value.name}_exact"
        for node in graph.node:
            node.input[:] = [exact if each == name else each for each in node.input]
            node.output[:] = [exact if each == name else each for each in node.output]
        width = value.type.tensor_type.shape.dim[3].dim_value
        constants = {
            "scale": scales[name].reshape(1, -1, 1, width),
            "least": np.array(-LARGEST, np.float32),
            "largest": np.array(LARGEST, np.float32),
        }
        for kind, array in constants.items():
            graph.initializer.append(numpy_helper.from_array(array, f"{name}_{kind}"))
        graph.node.extend(
            (
                helper.make_node("Div", [exact, f"{name}_scale"], [f"{name}_scaled"]),
                helper.make_node("Round", [f"{name}_scaled"], [f"{name}_rounded"]),
                helper.make_node(
                    "Clip",
                    [f"{name}_rounded", f"{name}_least", f"{name}_largest"],
                    [f"{name}_clipped"],
                ),
                helper.make_node("Cast", [f"{name}_clipped"], [name], to=TensorProto.INT8),
            )
        )
        value.type.tensor_type.elem_type = TensorProto.INT8
    save(model, path)


def with_dtype(manifest: Manifest, ports: Container[str | None], dtype: Dtype) -> Manifest:
    """The manifest whose states are of a type, by the names of their inputs and outputs."""
    changed = {"dtype": dtype}

    def lower(tensors: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(t.model_copy(update=changed) if t.name in ports else t for t in tensors)

    graphs = {
        key: graph.model_copy(
            update={"inputs": lower(graph.inputs), "outputs": lower(graph.outputs)}
        )
        for key, graph in manifest.graphs.items()
    }
    states = tuple(
        state.model_copy(update=changed) if state.step_input in ports else state
        for state in manifest.states
    )
    return manifest.model_copy(update={"states": states, "graphs": graphs})


def _rescale(
    graph: onnx.GraphProto, node: NodeProto, scales: Mapping[str, NDArray[np.float32]]
) -> None:
    """Gives one operator the scales of its keys and values."""
    assert len(node.input) <= _KEY_SCALE, node.name
    node.input.extend([""] * (_KEY_SCALE - len(node.input)))
    for cache in node.input[_PAST_KEY : _PAST_KEY + 2]:
        name = f"{cache}_scale"
        graph.initializer.append(numpy_helper.from_array(scales[cache], name))
        node.input.append(name)
    node.attribute.extend(helper.make_attribute(*item) for item in _ATTRIBUTES.items())
