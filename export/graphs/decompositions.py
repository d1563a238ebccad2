"""Operators of a traced graph that ONNX lacks, replaced in place.

`torch.onnx.export` traces a module to record its operators, and the record once more to decompose
those without a translation. Of the operators that our networks use, few have none, and each of them
is another operator with other arguments. Replacing these saves the second trace, which takes half
of an export. The exporter would compute the record once more to find types; it has them already.

The functions that are replaced are private to PyTorch. Its version is pinned, and a test fails
where they are no longer called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import sympy
import torch
from torch import SymInt
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, config
from torch.onnx._internal.exporter import _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.fx.passes.type_promotion import (
    InsertTypePromotion,
    TypePromotionTable,
    _TypePromotionInterpreter,
    get_type_promotion_rule,
)
from torch.utils._sympy.functions import FloorDiv

aten = torch.ops.aten
_ARITHMETIC: dict[Any, Any] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv,
}
_ASSERTIONS = (aten._assert_scalar.default, aten._assert_tensor_metadata.default)


@contextmanager
def traced_once() -> Iterator[None]:
    """In this block `torch.onnx.export` traces a module once, where nothing else is left to do.

    Nodes do not keep the lines of code that they are from, which would be read for each of them and
    written into the published file, with the paths of this machine.
    """
    decompose = _fx_passes.decompose_with_registry
    insert_casts = _fx_passes.insert_type_promotion_nodes
    without_lines = config.do_not_emit_stack_traces

    def replace(exported_program: ExportedProgram, registry: ONNXRegistry) -> ExportedProgram:
        graphs = _graphs(exported_program.graph_module)
        is_done = all(_replace_operators(each, registry) for each in graphs)
        return exported_program if is_done else decompose(exported_program, registry)

    _fx_passes.decompose_with_registry = replace
    _fx_passes.insert_type_promotion_nodes = _insert_casts
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = decompose
        _fx_passes.insert_type_promotion_nodes = insert_casts
        config.do_not_emit_stack_traces = without_lines


def _graphs(module: GraphModule) -> list[GraphModule]:
    """A graph, and the bodies of its loops."""
    return [each for each in module.modules() if isinstance(each, GraphModule)]


class _RecordedTypes(_TypePromotionInterpreter):
    """Casts arguments of different types to one, and computes no node but those that it changes."""

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function" or "val" not in n.meta:
            return super().run_node(n)
        with self._set_current_node(n):
            if rule := get_type_promotion_rule(n, self.type_promotion_table):
                self._maybe_promote_node(n, rule)
        return n.meta["val"]


def _insert_casts(graph_module: GraphModule) -> None:
    for module in _graphs(graph_module):
        table = TypePromotionTable()
        insertion = InsertTypePromotion(module, table)
        insertion.interpreter = _RecordedTypes(module, table)
        insertion.run()


def _replace_operators(module: GraphModule, registry: ONNXRegistry) -> bool:
    """Whether all operators can be translated then; each is one or has been replaced by one."""
    graph = module.graph
    _drop_assertions(graph)
    sizes = _Sizes()
    for node in graph.nodes:
        if node.op == "call_function" and not _is_translated(node.target, registry):
            replace = _REPLACEMENTS.get(node.target)
            if replace is None or not replace(node, sizes, *node.args):
                return False
        sizes.add(node)
    return True


def _drop_assertions(graph: Graph) -> None:
    """Also the arithmetic on sizes that nothing else reads. The exporter drops assertions later."""
    for target in _ASSERTIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _is_translated(target: Any, registry: ONNXRegistry) -> bool:
    """Whether an operator would remain where the exporter decomposes, and has a translation.

    Composite operators that may return a view do not remain.
    """
    if not isinstance(target, OpOverload):
        return bool(registry.is_registered(target))
    is_composite = target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    may_be_view = any(value.alias_info for value in target._schema.returns)
    remains = not target._schema.is_mutable and not (is_composite and may_be_view)
    return remains and bool(registry.is_registered(target))


class _Sizes:
    """The nodes of a graph, walked in order, that compute its symbolic sizes."""

    def __init__(self) -> None:
        self._sources: dict[sympy.Expr, tuple[Node, int]] = {}
        self._nodes: dict[sympy.Expr, Any] = {}

    def add(self, node: Node) -> None:
        """Nodes that follow may read the sizes of this one, or its value if that is a size."""
        value = node.meta.get("val")
        if isinstance(value, SymInt):
            self._nodes.setdefault(value.node.expr, node)
        elif isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, SymInt) and size.node.expr.is_Symbol:
                    self._sources.setdefault(size.node.expr, (node, axis))

    def nodes(self, shape: Iterable[int | SymInt], before: Node) -> list[int | Node | None]:
        """A number or a node for each size of a shape; None where no node computes it."""
        return [
            self._node(size.node.expr, before) if isinstance(size, SymInt) else size
            for size in shape
        ]

    def _node(self, size: sympy.Expr, before: Node) -> int | Node | None:
        if size.is_Integer:
            return int(size)
        if size not in self._nodes and size in self._sources:
            self._nodes[size] = _insert(before, aten.sym_size.int, *self._sources[size])
        elif size not in self._nodes and size.func in _ARITHMETIC:
            operands = [self._node(operand, before) for operand in size.args]
            if None not in operands:
                combine = partial(_insert, before, _ARITHMETIC[size.func])
                self._nodes[size] = reduce(combine, operands)
        return self._nodes.get(size)


def _flatten(node: Node, sizes: _Sizes, source: Node, *_: Any) -> bool:
    shape = sizes.nodes(node.meta["val"].shape, node)
    return None not in shape and _view(node, source, shape)


def _reshape(node: Node, sizes: _Sizes, source: Node, shape: list[int | Node]) -> bool:
    """A size that the network leaves out is computed where others may be 0, as in a copy."""
    if -1 in shape and not is_contiguous_or_false(source.meta["val"]):
        return _flatten(node, sizes, source)
    return _view(node, source, shape)


def _view(node: Node, source: Node, shape: Iterable[int | Node | None]) -> bool:
    """Of a copy in order, since a view cannot join dimensions whose order in memory is another."""
    copy = _insert(node, aten.clone.default, source, memory_format=torch.contiguous_format)
    return _become(node, aten.view.default, copy, shape)


def _expand(node: Node, sizes: _Sizes, source: Node, _: Node) -> bool:
    shape = sizes.nodes(node.meta["val"].shape, node)
    return None not in shape and _become(node, aten.expand.default, source, shape)


def _split(node: Node, _: _Sizes, source: Node, __: int, axis: int = 0) -> bool:
    size = node.meta["val"][0].shape[axis]
    return isinstance(size, int) and _become(node, aten.split.Tensor, source, size, axis)


def _cast(node: Node, _: _Sizes, source: Node, dtype: torch.dtype, *others: Any) -> bool:
    if others or node.kwargs:
        return False
    if source.meta["val"].dtype == dtype:
        return _become(node, aten.alias.default, source)
    return _become(node, aten._to_copy.default, source, dtype=dtype)


def _normalise(node: Node, _: _Sizes, *arguments: Any) -> bool:
    *tensors, is_training, momentum, epsilon, _cudnn = arguments
    target = aten._native_batch_norm_legit_no_training.default
    normalised = _insert(node, target, *tensors, momentum, epsilon)
    return not is_training and _become(node, operator.getitem, normalised, 0)


def _subtract(node: Node, _: _Sizes, subtrahend: Node, minuend: float, *scale: float) -> bool:
    return not scale and _become(node, aten.sub.Tensor, minuend, subtrahend)


def _reverse(node: Node, _: _Sizes, source: Node) -> bool:
    axes = [*reversed(range(source.meta["val"].ndim))]
    return _become(node, aten.permute.default, source, axes)


def _another(target: OpOverload) -> Callable[..., bool]:
    """An operator with the same arguments."""
    return lambda node, _, *arguments: _become(node, target, *arguments)


def _become(node: Node, target: Any, *arguments: Any, **options: Any) -> bool:
    """Changes a node's operator; what it computes, its name and its users stay."""
    node.target, node.args, node.kwargs = target, arguments, options
    return True


def _insert(before: Node, target: Any, *arguments: Any, **options: Any) -> Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, arguments, options)
    values = (each.meta["val"] if isinstance(each, Node) else each for each in arguments)
    node.meta = before.meta | {"val": target(*values, **options)}
    return node


_REPLACEMENTS: dict[Any, Callable[..., bool]] = {
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _flatten,
    aten.unflatten.int: _flatten,
    aten.expand_as.default: _expand,
    aten.chunk.default: _split,
    aten.to.dtype: _cast,
    aten.batch_norm.default: _normalise,
    aten.rsub.Scalar: _subtract,
    aten.numpy_T.default: _reverse,
    aten.__and__.Tensor: _another(aten.bitwise_and.Tensor),
    aten.__or__.Tensor: _another(aten.bitwise_or.Tensor),
}
