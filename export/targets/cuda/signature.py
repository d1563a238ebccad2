"""The types of a graph's values, from the operators' own signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, defs

Types = dict[str, str]
"""Name of a value → its element type, as the manifest names it."""

CONTRIBUTED = "com.microsoft"
_ATTENTION = ("T", "T", "T", "T", "M", "T", "T", "T")
_GROUPED = (
    *("T", "T", "T", "T_CACHE", "T_CACHE", "M", "M", "T", "T", "int64", "T", "T"),
    *("T_KV_SCALE", "T_KV_SCALE"),
)
_CONTRIBUTED_SIGNATURES = {
    "MultiHeadAttention": (_ATTENTION, ("T",)),
    "GroupQueryAttention": (_GROUPED, ("T", "T_CACHE", "T_CACHE")),
    "SkipLayerNormalization": (("T",) * 5, ("T", "float32", "float32", "T")),
    "MatMulIntegerToFloat": (("T1", "T2", "T3", "T3", "T1", "T2", "T3"), ("T3",)),
}
"""The contributed operators of our graphs (`docs/ContribOperators.md` of ONNX Runtime)."""


@dataclass(frozen=True)
class Signature:
    """An operator's type constraints, by position.

    Attributes:
        since: Version of the operator that an opset has.
        inputs: Name of a constraint, or a type; the last one repeats where it is variadic.
        outputs: The same.
    """

    since: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    repeats: bool = False

    def bound(self, node: NodeProto, types: Mapping[str, str]) -> dict[str, str]:
        """Constraint → type, of the inputs and outputs whose types are known."""
        found: dict[str, str] = {}
        for index, name in enumerate(node.input):
            constraint = self.input(index)
            if name in types and constraint is not None:
                found.setdefault(constraint, types[name])
        for name, constraint in zip(node.output, self.outputs, strict=False):
            if name in types:
                found.setdefault(constraint, types[name])
        return found

    def input(self, index: int) -> str | None:
        """The constraint of one input; None where the operator takes any mixture of types."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.repeats else None


@cache
def signature(operator: str, domain: str, opset: int) -> Signature | None:
    """The signature of an operator; None for one that we do not know."""
    if domain == CONTRIBUTED:
        known = _CONTRIBUTED_SIGNATURES.get(operator)
        return None if known is None else Signature(1, *known)
    try:
        schema = defs.get_schema(operator, opset, domain)
    except defs.SchemaError:
        return None
    variadic = bool(schema.inputs) and (
        schema.inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    )
    is_mixed = variadic and not schema.inputs[-1].is_homogeneous
    fixed = {
        each.type_param_str: each.allowed_type_strs[0]
        for each in schema.type_constraints
        if len(each.allowed_type_strs) == 1
    }
    inputs, outputs = (
        tuple(type_name(fixed.get(port.type_str, port.type_str)) for port in ports)
        for ports in (schema.inputs, schema.outputs)
    )
    return Signature(
        schema.since_version,
        inputs[:-1] if is_mixed else inputs,
        outputs,
        variadic and not is_mixed,
    )


def type_name(text: str) -> str:
    """`float32` for `tensor(float)`; a constraint's name as it is."""
    if not text.startswith("tensor("):
        return text
    inner = text.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


def opset_of(model: onnx.ModelProto) -> int:
    """Version of ONNX's own operators."""
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def dtype_name(element_type: int) -> str:
    """`float32` for `TensorProto.FLOAT`."""
    name = TensorProto.DataType.Name(element_type).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def float_type(node: NodeProto, types: Types) -> list[str]:
    """The float type that a node computes in, if it does."""
    values = [*node.output, *node.input]
    floats = ("float32", "float16", "bfloat16")
    return [types[name] for name in values if types.get(name) in floats][:1]


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside an operator (`Scan`)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g


def value_types(
    graph: GraphProto, opset: int, outer: Mapping[str, str] | None = None
) -> Iterator[tuple[GraphProto, Types]]:
    """Each graph and the types of the values that its nodes may read; bodies come first.

    Args:
        outer: Types of the values of the graph around it.
    """
    types: Types = dict(outer or {})
    elements = ((value.name, value.type.tensor_type.elem_type) for value in graph.input)
    types |= {name: dtype_name(element) for name, element in elements}
    types |= {tensor.name: dtype_name(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        inner: list[tuple[GraphProto, Types]] = []
        for body in bodies(node):
            inner = list(value_types(body, opset, types))  # its own graph is the last one
            yield from inner
        found = _outputs(node, types, opset, inner)
        types |= {name: dtype for name, dtype in zip(node.output, found, strict=False) if name}
    yield graph, types


def _outputs(
    node: NodeProto, types: Types, opset: int, inner: list[tuple[GraphProto, Types]]
) -> list[str]:
    """Types of a node's outputs, as far as they follow."""
    if inner:
        body, known = inner[-1]
        return [known[value.name] for value in body.output]
    attributes = {each.name: each for each in node.attribute}
    if node.op_type == "Cast":
        return [dtype_name(attributes["to"].i)]
    if node.op_type in ("Constant", "ConstantOfShape"):
        return [_constant_type(attributes)]
    found = signature(node.op_type, node.domain, opset)
    if found is None:
        return [types.get(node.input[0], "float32")] * len(node.output)
    bound = found.bound(node, types)
    last = found.outputs[-1] if found.outputs else ""
    names = [*found.outputs, *[last] * len(node.output)][: len(node.output)]
    return [bound.get(name, name if name in _TYPE_NAMES else "float32") for name in names]


def _constant_type(attributes: Mapping[str, AttributeProto]) -> str:
    if "value" in attributes:
        return dtype_name(attributes["value"].t.data_type)
    return "int64" if {"value_int", "value_ints"} & attributes.keys() else "float32"


_TYPE_NAMES = frozenset(dtype_name(value) for value in TensorProto.DataType.values() if value)
