"""Bfloat16 graphs on the CPU, whose provider has next to no kernels of that type.

Each value that is bfloat16 in the graph is rounded to bfloat16 and computed with in float32. CUDA's
kernels sum in float32 and round what they store, so this is what they compute but for the order of
sums.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from export.graphs.external_data import open_graph, save, values
from export.parity.graph_runs import bundle_path
from export.targets.cuda.signature import Types, opset_of, value_types
from inference.bundle.manifest import Bundle, Manifest

_BF16 = TensorProto.BFLOAT16


def emulate(source: Path, target: Path) -> None:
    """Writes a graph of float32 values that rounds where `source` has bfloat16.

    Args:
        source: Its bfloat16 inputs and outputs become float32.
    """
    model = open_graph(source)
    typed = list(value_types(model.graph, opset_of(model)))
    for graph, types in typed:
        _round_nodes(graph, types)
        for value in (*graph.input, *graph.output):
            _widen(value)
        for tensor in graph.initializer:
            if tensor.data_type == _BF16:
                wide = np.asarray(values(tensor, source.parent)).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    _place_beside(model, source, target)


def _round_nodes(graph: GraphProto, types: Types) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        _set_attributes(node)
        nodes.append(node)
        for position, name in enumerate(node.output):
            if types.get(name) == "bfloat16":
                raw, rounded = f"{name}_raw", f"{name}_bf16"
                node.output[position] = raw
                nodes.append(helper.make_node("Cast", [raw], [rounded], to=_BF16))
                nodes.append(helper.make_node("Cast", [rounded], [name], to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]


def _set_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _BF16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == _BF16:
            wide = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))


def _widen(value: ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type == _BF16:
        value.type.tensor_type.elem_type = TensorProto.FLOAT


def _place_beside(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Saves a model whose other large weights may lie beside its source."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(
                numpy_helper.from_array(np.asarray(values(tensor, source.parent)), tensor.name)
            )
    save(model, target)


def emulated(bundle: Bundle, manifest: Manifest, folder: Path) -> Bundle:
    """A staged bundle's graphs in an empty folder, as float32 graphs that round.

    Args:
        manifest: Of the float32 graphs, whose inputs and outputs these have.
    """
    found = Bundle(folder / manifest.name, manifest)
    for key in manifest.graphs:
        target = bundle_path(found, key)
        target.parent.mkdir(exist_ok=True)
        emulate(bundle_path(bundle, key), target)
    return found
