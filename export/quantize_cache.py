"""An int8 cache of keys and values as a rewrite of an exported `step` graph and of its manifest.

GroupQueryAttention rounds new keys and values with one fixed scale a channel as it stores them,
and attends to what it stored, also within the very call that brings them. So nothing depends on
neighbours, nor on the pieces that a prompt is read in.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.calibrate import Scales
from export.quantize import DOMAIN
from export.to_onnx import save
from serving.bundle import Growth, Manifest, State
from serving.bundle import Tensor as Port

Declared = TypeVar("Declared", Port, State)
_PAST_KEY, _KEY_SCALE = 3, 12  # inputs of the operator; those of the values follow them
_ATTRIBUTES = {
    "k_quant_type": "PER_CHANNEL",
    "v_quant_type": "PER_CHANNEL",
    "kv_cache_bit_width": 8,
}


def quantize_cache(path: Path, manifest: Manifest, scales: Scales) -> Manifest:
    """Rewrites an exported `step` graph in place.

    Args:
        path: Its caches are float32; a layer's two go through one GroupQueryAttention.
        scales: Of every APPEND state.

    Returns:
        The manifest that fits the rewritten graph.
    """
    appended = [state for state in manifest.states if state.growth is Growth.APPEND]
    by_input = {state.step_input: scales[state.name] for state in appended}
    ports = {name for state in appended for name in (state.step_input, state.step_output)}
    model = onnx.load(str(path))
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == "GroupQueryAttention":
            _rescale(model.graph, node, by_input)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ports:
            value.type.tensor_type.elem_type = TensorProto.INT8
    save(model, path)
    return _fitting(manifest, ports)


def _fitting(manifest: Manifest, ports: Container[str | None]) -> Manifest:
    """The manifest whose `step` has these inputs and outputs in int8."""

    def lowered(tensors: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(_as_int8(port) if port.name in ports else port for port in tensors)

    step = manifest.graphs["step"]
    changed = {"inputs": lowered(step.inputs), "outputs": lowered(step.outputs)}
    graphs = {**manifest.graphs, "step": step.model_copy(update=changed)}
    states = tuple(_as_int8(s) if s.step_input in ports else s for s in manifest.states)
    return manifest.model_copy(update={"states": states, "graphs": graphs})


def _as_int8(declared: Declared) -> Declared:
    return declared.model_copy(update={"dtype": "int8"})


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
