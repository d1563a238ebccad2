"""Int8 weights and activations as a rewrite of an exported graph.

Every linear layer and every embedding table that tokens are looked up in becomes int8; attention,
norms, convolutions and recurrent operators stay float32. Weights are signed and symmetric with one
scale an output channel (Jacob et al. 2018, arXiv 1712.05877, §2): signed because AMX and VNNI
multiply unsigned by signed. Activations are scaled as the graph runs:

- `int8`: one scale a row (Yao et al. 2022, "ZeroQuant", arXiv 2206.01861, §3.2), so that what a
  request gets does not depend on the rest of its batch.
- `int8-fast`: one scale for the whole batch, by one fused operator. Faster, but neighbours move a
  row's scores.

`quantize_weights.py` rewrites weights alone, for runtimes that scale activations themselves.

Processors with neither AMX nor VNNI compute both less exactly: their 16-bit sums saturate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from export.graphs.external_data import open_graph, save, values, weight_bytes
from export.precision import Precision

DOMAIN = "com.microsoft"
LARGEST = 127
"""Symmetric: -127 … 127, with 128 as the unsigned activations' zero point."""
BLOCK = 1024  # rows
NARROWEST = 8
"""Layers with fewer inputs or outputs stay float32: nothing to gain."""


@dataclass(frozen=True)
class Quantised:
    """What became of one file.

    Attributes:
        layers: Linear layers that compute in int8.
        tables: Embedding tables that are stored in int8.
        kept_bytes: Bytes of weights that stay float32.
        four_bits: Of the layers, those with weights of 4 bits.
    """

    layers: int
    tables: int
    kept_bytes: int
    four_bits: int = 0


def quantize(path: Path, precision: Precision) -> Quantised:
    """Rewrites an exported file in place.

    Args:
        path: float32; its interface stays as it is.
        precision: int8 or int8-fast.
    """
    return rewrite_file(path, lambda graph: Rewrite(graph, path.parent, precision))


def rewrite_file(path: Path, rewrite_of: Callable[[onnx.GraphProto], Rewrite]) -> Quantised:
    """Rewrites a file in place, by what `rewrite_of` returns for its graph."""
    model = open_graph(path)
    rewrite = rewrite_of(model.graph)
    rewrite.run()
    for opset in model.opset_import:
        if not opset.domain:
            opset.version = max(opset.version, rewrite.least_opset)
    model.ir_version = max(model.ir_version, rewrite.least_ir_version)
    if DOMAIN not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    save(model, path)
    kept = sum(weight_bytes(t) for t in model.graph.initializer if t.data_type == t.FLOAT)
    return Quantised(rewrite.layers, len(rewrite.tables), kept, rewrite.four_bits)


def per_channel(
    weight: NDArray[np.float32], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Signed weights and the scale that each must be multiplied by.

    Args:
        weight: (K, N).
        axis: The input's axis; the scales (of the other axis' size) are taken over it.
    """
    largest, least = (of(weight, axis=axis, keepdims=True) for of in (np.max, np.min))
    absmax = np.maximum(largest, -least)
    scale = (np.where(absmax > 0, absmax, 1) / LARGEST).astype(np.float32)
    quantised = np.empty(weight.shape, np.int8)
    for start in range(0, len(weight), BLOCK):  # copies of parts, not of the whole
        part = slice(start, start + BLOCK)
        quantised[part] = np.rint(weight[part] / (scale[part] if axis else scale))
    return quantised, scale.reshape(-1)


@dataclass(frozen=True)
class Linear:
    """A layer that can be rewritten: y = x · weight (+ bias)."""

    x: str
    weight: str
    bias: str | None
    is_transposed: bool
    """The weight lies as (N, K)."""
    y: str


class Rewrite:
    """One graph under change. Nodes stay in topological order: each is replaced where it stood.

    Attributes:
        least_opset: Version of ONNX's operators that the rewritten graph needs.
        least_ir_version: The same of its format.
    """

    least_opset, least_ir_version = 20, 9

    def __init__(self, graph: onnx.GraphProto, folder: Path, precision: Precision) -> None:
        self.graph = graph
        self.folder = folder
        self.precision = precision
        self.layers = 0
        self.four_bits = 0
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.tokens = {value.name for value in graph.input}
        # Of weights that several layers share, the exporter leaves the transposition in the graph.
        self.turned = {
            n.output[0]: n.input[0]
            for n in graph.node
            if n.op_type == "Transpose" and self._is_matrix(n.input[0])
        }
        self.tables = {n.input[0] for n in graph.node if self._is_token_lookup(n)}
        self._rows: dict[str, tuple[str, str]] = {}  # x → (quantised x, its row scales)
        self._stored: set[str] = set()

    def run(self) -> None:
        """Replaces the nodes, then drops unused weights."""
        nodes = list(self.graph.node)
        del self.graph.node[:]
        for node in nodes:
            linear = self._as_linear(node)
            if self._is_token_lookup(node):
                self._look_up(node)
            elif linear is None:
                self.graph.node.append(node)
            else:
                self.layers += 1
                self._multiply(linear)
        self._drop_unused_transpositions()
        used = Counter(name for node in self.graph.node for name in node.input)
        kept = [tensor for tensor in self.graph.initializer if used[tensor.name]]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)

    def _drop_unused_transpositions(self) -> None:
        used = {name for node in self.graph.node for name in node.input}
        nodes = [
            n for n in self.graph.node if n.output[0] in used or n.output[0] not in self.turned
        ]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _is_token_lookup(self, node: NodeProto) -> bool:
        """A table indexed by an input of the graph; positions are computed, and stay float32."""
        return (
            node.op_type == "Gather"
            and self._is_matrix(node.input[0])
            and node.input[1] in self.tokens
            and _attribute(node, "axis", 0) == 0
        )

    def _as_linear(self, node: NodeProto) -> Linear | None:
        """The layer that a node computes, if it is one that int8 can."""
        if node.op_type == "MatMul" and node.input[1] in self.turned:
            return Linear(node.input[0], self.turned[node.input[1]], None, True, node.output[0])
        if node.op_type not in ("MatMul", "Gemm") or not self._is_matrix(node.input[1]):
            return None
        if node.op_type == "MatMul":
            return Linear(node.input[0], node.input[1], None, False, node.output[0])
        defaults = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        if any(_attribute(node, name, value) != value for name, value in defaults.items()):
            return None
        bias = self._bias(node.input[2]) if len(node.input) > 2 else None
        is_transposed = bool(_attribute(node, "transB", 0))
        return Linear(node.input[0], node.input[1], bias, is_transposed, node.output[0])

    def _bias(self, name: str) -> str | None:
        """A bias, unless it is all zeros: opus-mt's is, and adding it costs a pass over V."""
        tensor = self.weights.get(name)
        is_zero = tensor is not None and not values(tensor, self.folder).any()
        return None if is_zero else name

    def _is_matrix(self, name: str) -> bool:
        tensor = self.weights.get(name)
        return (
            tensor is not None
            and tensor.data_type == tensor.FLOAT
            and len(tensor.dims) == 2
            and min(tensor.dims) >= NARROWEST
        )

    def _multiply(self, linear: Linear) -> None:
        weight, scale = self._weight(linear)
        if not self.precision.is_batch_invariant:
            inputs = [linear.x, weight, scale, "", linear.bias or ""]
            self._node("DynamicQuantizeMatMul", inputs, linear.y)
            return
        x, absmax = self._quantised_rows(linear.x)
        product = self._node(
            "MatMulIntegerToFloat",
            [x, weight, self._constant("int8_unit", np.float32(1 / LARGEST)), scale, self._zero()],
            f"{linear.y}_unit",
        )
        scaled = linear.y if linear.bias is None else f"{linear.y}_scaled"
        self._node("Mul", [product, absmax], scaled)
        if linear.bias is not None:
            self._node("Add", [scaled, linear.bias], linear.y)

    def _quantised_rows(self, x: str) -> tuple[str, str]:
        """Rows scaled to ±1 and rounded, and the largest magnitude of each; once for each `x`.

        A row of zeros divides to NaN, is rounded to whatever, and is multiplied by zero again.
        """
        if x not in self._rows:
            axes = self._constant("int8_last_axis", np.array([-1], np.int64))
            magnitude = self._node("Abs", [x], f"{x}_abs")
            absmax = self._node("ReduceMax", [magnitude, axes], f"{x}_absmax", keepdims=1)
            unit = self._node("Div", [x, absmax], f"{x}_normalised")
            scale = self._constant("int8_unit", np.float32(1 / LARGEST))
            quantised = self._node("QuantizeLinear", [unit, scale, self._zero()], f"{x}_int8")
            self._rows[x] = quantised, absmax
        return self._rows[x]

    def _look_up(self, node: NodeProto) -> None:
        """Rows of an int8 table, each times its own scale."""
        table, scale = self._table(node.input[0])
        axis = self._constant("int8_last_axis", np.array([-1], np.int64))
        rows = self._node("Gather", [table, node.input[1]], f"{node.output[0]}_rows_int8")
        values = self._node("Cast", [rows], f"{node.output[0]}_values", to=onnx.TensorProto.FLOAT)
        scales = self._node("Gather", [scale, node.input[1]], f"{node.output[0]}_scales")
        column = self._node("Unsqueeze", [scales, axis], f"{node.output[0]}_column")
        self._node("Mul", [values, column], node.output[0])

    def _weight(self, linear: Linear) -> tuple[str, str]:
        """Names of an int8 weight (K, N) and its scales (N,).

        A table that tokens are looked up in is stored once; ONNX Runtime transposes it as it loads
        the graph.
        """
        if linear.weight in self.tables and linear.is_transposed:
            table, scale = self._table(linear.weight)
            turned = f"{table}_transposed"
            if turned not in self._stored:
                self._stored.add(turned)
                self._node("Transpose", [table], turned, perm=[1, 0])
            return turned, scale
        name, scale = f"{linear.weight}_int8", f"{linear.weight}_scale"
        if name not in self._stored:
            weight = values(self.weights[linear.weight], self.folder)
            quantised, scales = per_channel(weight.T if linear.is_transposed else weight, axis=0)
            self._constant(name, np.ascontiguousarray(quantised))
            self._constant(scale, scales)
        return name, scale

    def _table(self, name: str) -> tuple[str, str]:
        """Names of an int8 embedding table (V, D) and the scales (V,) of its rows."""
        table, scale = f"{name}_table_int8", f"{name}_table_scale"
        if table not in self._stored:
            quantised, scales = per_channel(values(self.weights[name], self.folder), axis=1)
            self._constant(table, quantised)
            self._constant(scale, scales)
        return table, scale

    def _zero(self) -> str:
        return self._constant("int8_zero", np.uint8(LARGEST + 1))

    def _constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        if name not in self._stored:
            self._stored.add(name)
            self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(
        self, operator: str, inputs: list[str], output: str, **attributes: int | list[int]
    ) -> str:
        is_contributed = operator in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
        domain = DOMAIN if is_contributed else ""
        node = helper.make_node(operator, inputs, [output], domain=domain)
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        self.graph.node.append(node)
        return output


def _attribute(node: NodeProto, name: str, default: float) -> float:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)
