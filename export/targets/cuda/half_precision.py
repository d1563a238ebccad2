"""Float16 or bfloat16 graphs as a rewrite of exported float32 graphs.

Weights and values become the low type, but for the nodes that `islands` names, with casts where the
two meet. States of a decoder, its KV cache among them, are kept in the low type; every other output
stays float32, so that the engine and the clients see the same types as on the CPU.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from export.graphs.external_data import open_graph, save, values
from export.targets.cuda.float32_nodes import FLOAT, RANGES, Islands, NoKernelError
from export.targets.cuda.kernels import CUDA, Kernels
from export.targets.cuda.signature import Types, bodies, opset_of, signature, value_types
from export.targets.cuda.substitutes import align_products
from inference.errors import SetupError

_ELEMENTS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
_ANY_TYPE = frozenset({"Shape", "Size", "Cast"})
"""Operators that read a value in whatever type it is."""
_BLOCK = 1 << 24  # elements


@dataclass(frozen=True)
class Halved:
    """What became of one file.

    Attributes:
        low: Nodes that compute in the low type.
        full: Nodes that stay float32.
        casts: Between the two.
    """

    low: int
    full: int
    casts: int


def halve(path: Path, key: str, low: str, states: Set[str], kernels: Kernels = CUDA) -> Halved:
    """Rewrites an exported file in place.

    Args:
        path: float32.
        key: The graph's name, for the error.
        low: float16 or bfloat16.
        states: Inputs and outputs that hold a decoder's states.
        kernels: Of the device.

    Raises:
        SetupError: the device has no kernel of that type for the graph's main operators; names them
            and the graph.
    """
    model = open_graph(path)
    opset = opset_of(model)
    for graph, _ in value_types(model.graph, opset):
        _lift_constants(graph)
    try:
        rewrite = _Rewrite(model.graph, opset, low, path.parent, ports=states, kernels=kernels)
        rewrite.run()
    except NoKernelError as error:
        raise SetupError(f"{error.message} in {key}: export it in another precision") from error
    align_products(model.graph)
    save(model, path)
    return Halved(rewrite.low_nodes, rewrite.full_nodes, rewrite.casts)


def _lift_constants(graph: GraphProto) -> None:
    """Makes initializers of `Constant` nodes with a tensor."""
    kept = []
    for node in graph.node:
        attribute = node.attribute[0] if node.op_type == "Constant" else None
        if attribute is None or attribute.name != "value":
            kept.append(node)
            continue
        graph.initializer.append(attribute.t)
        graph.initializer[-1].name = node.output[0]
    del graph.node[:]
    graph.node.extend(kept)


class _Rewrite:
    """One graph under change, or a body inside it; nodes stay in topological order."""

    def __init__(
        self,
        graph: GraphProto,
        opset: int,
        low: str,
        folder: Path,
        *,
        ports: Set[str],
        kernels: Kernels,
        outer: _Rewrite | None = None,
    ) -> None:
        self._kernels = kernels
        self.graph, self._opset, self._low = graph, opset, low
        self._folder, self._ports, self._outer = folder, ports, outer
        self._types: Types = _types_of(graph, opset, None if outer is None else outer._types)
        names = {value.name for value in graph.output}
        constants = {} if outer is None else outer.islands.constants
        self.islands: Islands = Islands(
            graph, self._types, opset, low, names - ports, constants, kernels
        )
        self._stored: dict[str, str] = {}
        self._converted: dict[tuple[str, str], str] = {}
        self._inner: dict[str, str] = {}  # outputs whose type is not that of their node
        self._nodes: list[NodeProto] = []
        self.low_nodes = self.full_nodes = self.casts = 0

    def run(self) -> None:
        """Replaces types, nodes and weights."""
        for value in self.graph.input:
            self._stored[value.name] = self._set_port(value)
        wanted = {value.name: self._set_port(value) for value in self.graph.output}
        for index, node in enumerate(self.graph.node):
            dtype = FLOAT if index in self.islands.nodes else self._low
            self._inner |= {
                name: f"{name}_{dtype}"
                for name in node.output
                if self._types.get(name) == FLOAT and wanted.get(name, dtype) != dtype
            }
        for index, node in enumerate(self.graph.node):
            self._emit(node, FLOAT if index in self.islands.nodes else self._low)
        for name, inner in self._inner.items():
            self._append_cast(inner, name, wanted[name])
        del self.graph.node[:]
        self.graph.node.extend(self._nodes)
        del self.graph.value_info[:]
        if self._outer is None:
            _drop_unused(self.graph)

    def _set_port(self, value: ValueInfoProto) -> str:
        """Gives an input or output of the graph its type, and returns it."""
        if self._types.get(value.name) != FLOAT:
            return self._types.get(value.name, "")
        dtype = self._low if value.name in self._ports else FLOAT
        value.type.tensor_type.elem_type = _ELEMENTS[dtype]
        return dtype

    def _emit(self, node: NodeProto, dtype: str) -> None:
        """Appends a node whose floats are of a type."""
        touched = [*node.input, *node.output]
        if not any(self._types.get(name) == FLOAT for name in touched):
            self._nodes.append(node)
            return
        inner = list(bodies(node))
        known = signature(node.op_type, node.domain, self._opset)
        for position, name in enumerate(node.input):
            if node.op_type not in _ANY_TYPE and self._types.get(name) == FLOAT:
                constraint = None if known is None else known.input(position)
                is_fixed = constraint in (FLOAT, "T_KV_SCALE")
                node.input[position] = self._as(name, FLOAT if is_fixed else dtype)
            else:
                node.input[position] = self._current(name)
        for body in inner:
            self._rewrite_body(node, body)
        self._set_attributes(node, dtype)
        for position, name in enumerate(node.output):
            if self._types.get(name) == FLOAT:
                node.output[position] = self._inner.get(name, name)
                self._stored[node.output[position]] = dtype
        self._nodes.append(node)
        self.full_nodes += dtype == FLOAT
        self.low_nodes += dtype != FLOAT

    def _rewrite_body(self, node: NodeProto, body: GraphProto) -> None:
        if node.op_type != "Scan":
            raise SetupError(f"{node.op_type} cannot be rewritten in {self._low}")
        ports = {value.name for value in (*body.input, *body.output)}
        inside = _Rewrite(
            body,
            self._opset,
            self._low,
            self._folder,
            ports=ports,
            kernels=self._kernels,
            outer=self,
        )
        inside.run()
        self.low_nodes += inside.low_nodes
        self.full_nodes += inside.full_nodes
        self.casts += inside.casts

    def _set_attributes(self, node: NodeProto, dtype: str) -> None:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                if attribute.i == TensorProto.FLOAT:
                    attribute.i = _ELEMENTS[dtype]
            elif node.op_type == "ConstantOfShape" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(self._tensor(attribute.t, attribute.t.name, dtype))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = self._tensor(helper.make_tensor("", TensorProto.FLOAT, [1], [0.0]), "", dtype)
            node.attribute.append(helper.make_attribute("value", zero))

    def _as(self, name: str, dtype: str) -> str:
        """The name of a value in a type, converted where it is needed first."""
        tensor = self.islands.constants.get(name)
        if tensor is not None:
            return self._constant(tensor, dtype)
        name = self._current(name)
        if self._dtype(name) == dtype:
            return name
        if (name, dtype) not in self._converted:
            self._converted[name, dtype] = f"{name}_as_{dtype}"
            self._append_cast(name, f"{name}_as_{dtype}", dtype)
        return self._converted[name, dtype]

    def _constant(self, tensor: TensorProto, dtype: str) -> str:
        """A constant's name in a type; the graph that holds it holds the copy too."""
        if self._outer is not None and tensor.name in self._outer.islands.constants:
            return self._outer._constant(tensor, dtype)
        if dtype == FLOAT:
            return tensor.name
        name = f"{tensor.name}_{dtype}"
        if (tensor.name, dtype) not in self._converted:
            self._converted[tensor.name, dtype] = name
            self.graph.initializer.append(self._tensor(tensor, name, dtype))
        return name

    def _tensor(self, tensor: TensorProto, name: str, dtype: str) -> TensorProto:
        """A float32 tensor in a type; numbers beyond its range become its largest."""
        given = np.ascontiguousarray(values(tensor, self._folder)).reshape(-1)
        if dtype == FLOAT:
            return tensor
        element, largest = _ELEMENTS[dtype], RANGES[dtype][1]
        lowered = np.empty(given.shape, helper.tensor_dtype_to_np_dtype(element))
        for start in range(0, len(given), _BLOCK):
            part = given[start : start + _BLOCK]
            bounded = np.where(np.isinf(part), part, np.clip(part, -largest, largest))
            lowered[start : start + _BLOCK] = bounded.astype(lowered.dtype)
        return helper.make_tensor(name, element, tensor.dims, lowered.tobytes(), raw=True)

    def _current(self, name: str) -> str:
        """A value's name, where an output's producer writes another one."""
        if name in self._inner:
            return self._inner[name]
        if name in self._stored or self._outer is None:
            return name
        return self._outer._current(name)

    def _dtype(self, name: str) -> str:
        """The float type of a value now."""
        if name in self._stored or self._outer is None:
            return self._stored[name]
        return self._outer._dtype(name)

    def _append_cast(self, source: str, target: str, dtype: str) -> None:
        self.casts += 1
        self._stored[target] = dtype
        self._nodes.append(helper.make_node("Cast", [source], [target], to=_ELEMENTS[dtype]))


def _types_of(graph: GraphProto, opset: int, outer: Types | None) -> Types:
    """Types of the values of one graph, those around it included."""
    *_, (_, types) = value_types(graph, opset, outer)
    return types


def _drop_unused(graph: GraphProto) -> None:
    """Removes weights that no node reads any more."""
    used = {value.name for value in graph.output}

    def gather(inside: GraphProto) -> None:
        for node in inside.node:
            used.update(node.input)
            for body in bodies(node):
                used.update(value.name for value in body.output)
                gather(body)

    gather(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
