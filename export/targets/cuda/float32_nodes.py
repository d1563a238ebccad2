"""Which nodes of a graph stay float32 when the rest becomes float16 or bfloat16.

Fixed rules, so that the same checkpoint gives the same graph:

- what reads integers as numbers: pixels before their first convolution, positions, lengths, counts;
- sums, means and powers, from what they read to what divides by them: root-mean-square norms,
  L2 norms of embeddings, means over tokens;
- what has a constant that the type cannot hold, such as a clamp at 1e-12;
- what lies between the last product and an output: softmax, top-k, scaling of scores;
- operators of which the device has no kernel of the type.

Everything else is in the low type: products, convolutions, attention, recurrent operators, layer
norms (whose CUDA kernels sum in float32), activations and additions. Where a mask writes a constant
beyond the type's range, the constant becomes the type's largest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from export.targets.cuda.kernels import CUDA, Kernels
from export.targets.cuda.signature import Types, signature
from inference.errors import SetupError

FLOAT = "float32"
RANGES = {"float16": (2.0**-14, 65504.0), "bfloat16": (2.0**-126, 3.3895313892515355e38)}
"""Type → its least normal and its largest number."""

HEAVY = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "GRU", "LSTM", "RNN", "Scan"),
        *("MultiHeadAttention", "GroupQueryAttention"),
    }
)
"""Most of a graph's work: never in float32, so a graph is refused where a device lacks the type."""

_LAYOUT = frozenset(
    {
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Concat", "Split"),
        *("Gather", "GatherElements", "GatherND", "Flatten", "Pad", "Identity", "Where"),
    }
)
_SEEDS = frozenset(
    {
        *("Pow", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "CumSum", "LpNormalization"),
        *("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        *("ReduceLogSum", "ReduceLogSumExp", "ReduceProd"),
    }
)
_FORWARD = _LAYOUT | {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Clip", "Max", "Min", "Cast"}
_CLOSING = frozenset({"Div", "Mul", "Sub"})
"""Operators that apply a norm to the very values that it was taken from."""
_BACKWARD = _LAYOUT | {"Softmax", "LogSoftmax", "Sigmoid", "Tanh", "TopK", "Mul", "Div", "Clip"}
_INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})


class NoKernelError(SetupError):
    """The device lacks the type for operators that do most of a graph's work."""

    wire = "no_kernel"


class Islands:
    """The nodes of one graph that stay float32.

    Args:
        types: Of all values that the nodes read or write.
        opset: Of ONNX's own operators.
        low: The type of the rest.
        floats: Outputs of the graph that stay float32.
        outer: Constants of the graph around this one.
        kernels: Of the device.

    Attributes:
        constants: Names of values that are known at export.

    Raises:
        NoKernelError: names the operators.
    """

    def __init__(
        self,
        graph: GraphProto,
        types: Types,
        opset: int,
        low: str,
        floats: Set[str],
        outer: Mapping[str, TensorProto],
        kernels: Kernels = CUDA,
    ) -> None:
        self._kernels = kernels
        self._graph, self._types, self._low, self._opset = graph, types, low, opset
        self.constants = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
        self._wide: set[str] = set()  # float32 values whose readers stay float32 too
        self._roots: dict[str, frozenset[str]] = {}
        self.nodes: set[int] = set()
        """Indices of the nodes."""
        self._refuse_missing()
        for index, node in enumerate(graph.node):
            self._go_forward(index, node)
        self._go_backward(floats)

    def _refuse_missing(self) -> None:
        missing = sorted(
            {
                f"{node.op_type} at opset {self._opset}"
                for node in self._graph.node
                if node.op_type in HEAVY and self._floats(node) and not self._has_kernel(node)
            }
        )
        if missing:
            raise NoKernelError(
                f"{self._kernels.name} has no {self._low} kernel of {', '.join(missing)}"
            )

    def _go_forward(self, index: int, node: NodeProto) -> None:
        if node.op_type in HEAVY:
            return
        inputs = [name for name in node.input if self._types.get(name) == FLOAT]
        wide = [name for name in inputs if name in self._wide]
        others = [name for name in inputs if name not in self._wide and not self._is_constant(name)]
        roots = frozenset[str]().union(*(self._roots[name] for name in wide))
        if self._is_seed(node):
            self._keep(index, node, roots | frozenset(others))
        elif wide and (not self._writes_float(node) or (node.op_type in _FORWARD and not others)):
            self._keep(index, node, roots)
        elif (wide and node.op_type in _CLOSING and roots.issuperset(others)) or (
            self._floats(node) and not self._has_kernel(node)
        ):
            self.nodes.add(index)

    def _keep(self, index: int, node: NodeProto, roots: frozenset[str]) -> None:
        self.nodes.add(index)
        for name in node.output:
            if self._types.get(name) == FLOAT:
                self._wide.add(name)
                self._roots[name] = roots

    def _is_seed(self, node: NodeProto) -> bool:
        if not self._floats(node):
            return False
        if node.op_type == "Cast":
            return self._types.get(node.input[0]) in _INTEGERS and self._writes_float(node)
        return node.op_type in _SEEDS or self._has_unfit_constant(node)

    def _has_unfit_constant(self, node: NodeProto) -> bool:
        """Whether a number in it is outside the type's range; those of masks become its largest."""
        numbers = [abs(number) for number in map(self._number, node.input) if number]
        least, largest = RANGES[self._low]
        if node.op_type == "Where":
            return any(0 < number < least for number in numbers)
        return any(not least <= number <= largest for number in numbers if np.isfinite(number))

    def _number(self, name: str) -> float | None:
        """The value of a float constant of one element."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != tensor.FLOAT or np.prod(tensor.dims) != 1:
            return None
        return float(numpy_helper.to_array(tensor).reshape(()))

    def _go_backward(self, floats: Set[str]) -> None:
        """From float32 outputs to the last product, where nothing else reads the values."""
        readers: dict[str, set[int]] = defaultdict(set)
        for index, node in enumerate(self._graph.node):
            for name in node.input:
                readers[name].add(index)
        outputs = {value.name for value in self._graph.output}
        exits: set[int] = set()  # nodes of which nothing but float32 outputs is computed
        for index in reversed(range(len(self._graph.node))):
            node = self._graph.node[index]
            names = [name for name in node.output if self._types.get(name) == FLOAT]
            is_exit = all(
                readers[name] <= exits and (name in floats or name not in outputs) for name in names
            )
            if is_exit and (index in self.nodes or not names or self._is_epilogue(node)):
                exits.add(index)
        self.nodes |= {index for index in exits if self._floats(self._graph.node[index])}

    def _is_epilogue(self, node: NodeProto) -> bool:
        inputs = [name for name in node.input if self._types.get(name) == FLOAT]
        computed = [name for name in inputs if not self._is_constant(name)]
        if node.op_type in ("Add", "Sub"):  # a bias; not the sum of two branches
            return len(computed) == 1
        return node.op_type in _BACKWARD and bool(computed)

    def _has_kernel(self, node: NodeProto) -> bool:
        """Whether the device computes the node with its floats in the low type."""
        known = signature(node.op_type, node.domain, self._opset)
        if known is None or not self._floats(node):
            return True
        low = {name: self._low if dtype == FLOAT else dtype for name, dtype in self._types.items()}
        bound = known.bound(node, low)
        return self._kernels.has(node.domain, node.op_type, known.since, bound)

    def _floats(self, node: NodeProto) -> bool:
        return any(self._types.get(name) == FLOAT for name in (*node.input, *node.output))

    def _writes_float(self, node: NodeProto) -> bool:
        return any(self._types.get(name) == FLOAT for name in node.output)

    def _is_constant(self, name: str) -> bool:
        return name in self.constants
