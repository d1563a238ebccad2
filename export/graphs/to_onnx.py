"""From module to ONNX file: `torch.onnx.export(dynamo=True)` with the manifest's interface."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx
import onnx_ir
import torch
from torch import nn
from torch.export import Dim
from torch.onnx.errors import OnnxExporterError

from export.architecture import Lowering
from export.checkpoint.weight_files import tensors_in
from export.graphs.decompositions import traced_once
from export.graphs.external_data import EXTERNAL_DATA_BYTES, PAGE, SMALL_BYTES, data_path
from export.layers.attention.attention import Attention
from export.layers.recurrence.cells import BidirectionalGRU
from export.layers.recurrence.recurrent_stack import RecurrentLayer
from inference.bundle.manifest import Graph
from inference.bundle.manifest import Tensor as Port
from inference.errors import SetupError

OPSET = 20  # the newest that a current Triton container's own ONNX Runtime is sure to take
MAX_IR = 10
# Traced sizes: all different, so that no two dimensions are taken for one. R is a multiple of B.
TRACED_SIZES = {"B": 2, "R": 6, "T": 3, "P": 7, "S": 5, "M": 4, "N": 9, "I": 8}

_MARK = "port:"


@runtime_checkable
class Packed(Protocol):
    """A layer whose weights an operator takes in another layout."""

    def pack(self) -> None:
        """Registers the weights in that layout; called once, on a copy of the network."""


def to_onnx(lowering: Lowering, path: Path) -> None:
    """Exports one graph to a file.

    Raises:
        SetupError: torch cannot express the module as ONNX.
    """
    module = _shallow_copy(lowering.module).eval()
    with tensors_in(path.parent):
        for layer in module.modules():
            if isinstance(layer, Attention):
                layer.has_fused_form = lowering.is_fused
            if isinstance(layer, Attention | BidirectionalGRU | RecurrentLayer):
                layer.is_for_cuda = lowering.is_for_cuda
            if isinstance(layer, Packed):
                layer.pack()
    program = _export(module, lowering)
    model = _without_large_weights(program, path)
    _name_ports(model, lowering.graph)
    _name_dimensions(model, lowering.graph)
    # The exporter's intermediate shapes can contradict shape inference; ORT infers its own.
    del model.graph.value_info[:]
    model.ir_version = min(model.ir_version, MAX_IR)
    onnx.save_model(model, str(path))
    onnx.checker.check_model(str(path))


def _shallow_copy(module: nn.Module) -> nn.Module:
    """A copy with the same weights, not copies of them: `pack` adds tensors and changes none."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def _without_large_weights(program: torch.onnx.ONNXProgram, path: Path) -> onnx.ModelProto:
    """The graph; where its weights are large they are written beside it, one tensor at a time."""
    data = data_path(path)
    data.unlink(missing_ok=True)
    weights = program.model.graph.initializers.values()
    if sum(tensor.const_value.nbytes for tensor in weights if tensor.const_value) > (
        EXTERNAL_DATA_BYTES
    ):
        onnx_ir.external_data.unload_from_model(
            program.model,
            path.parent,
            data.name,
            size_threshold_bytes=SMALL_BYTES,
            alignment=PAGE,
            max_workers=1,
        )
    return program.model_proto


def example_inputs(
    graph: Graph, sizes: Mapping[str, int] | None = None
) -> tuple[torch.Tensor, ...]:
    """Inputs of traced size; their values do not matter, tracing is symbolic.

    Args:
        sizes: Of further dimensions.
    """
    known = TRACED_SIZES | dict(sizes or {})
    return tuple(
        torch.ones(
            [known[size] if isinstance(size, str) else size for size in port.shape],
            dtype=getattr(torch, port.dtype),
        )
        for port in graph.inputs
    )


def _export(module: nn.Module, lowering: Lowering) -> torch.onnx.ONNXProgram:
    graph = lowering.graph
    # Optional packages that are not installed are no news to the user.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    inputs = example_inputs(graph, lowering.traced_sizes)
    with warnings.catch_warnings(), torch.no_grad(), traced_once():
        # torch 2.13 copies its own pytrees with a call that it deprecates.
        warnings.filterwarnings("ignore", r".*LeafSpec.*", FutureWarning)
        try:
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes(module, graph),
                input_names=[_MARK + port.name for port in graph.inputs],
                output_names=[_MARK + port.name for port in graph.outputs],
                verbose=False,
            )
        except OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise SetupError(f"torch cannot export {graph.file}: {reason}") from error
    assert program is not None
    return program


def _name_ports(model: onnx.ModelProto, graph: Graph) -> None:
    """Gives inputs and outputs their names.

    The exporter calls intermediate values after operators (`embedding`), without looking whether
    an output is called so; such values get another name.
    """
    ports = {port.name for port in (*graph.inputs, *graph.outputs)}

    def rename(name: str) -> str:
        return name.removeprefix(_MARK) if name.startswith(_MARK) else name + "_" * (name in ports)

    for graph_proto in _with_bodies(model.graph):
        for node in graph_proto.node:
            node.input[:] = [rename(name) for name in node.input]
            node.output[:] = [rename(name) for name in node.output]
        for tensor in graph_proto.initializer:
            tensor.name = rename(tensor.name)
        for value in (*graph_proto.input, *graph_proto.output):
            value.name = rename(value.name)


def _with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the bodies of its operators (`Scan`), which may read its values."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_bodies(attribute.g)


def dynamic_shapes(module: nn.Module, graph: Graph) -> tuple[object, ...]:
    """One entry a parameter of `forward`; inputs that `*rest` takes are one entry together."""
    shapes = [
        {axis: Dim.DYNAMIC for axis, size in enumerate(port.shape) if isinstance(size, str)}
        for port in graph.inputs
    ]
    code = type(module).forward.__code__
    named = code.co_argcount - 1  # without self
    takes_rest = bool(code.co_flags & 0x04)  # CO_VARARGS
    return (*shapes[:named], tuple(shapes[named:])) if takes_rest else tuple(shapes)


def _name_dimensions(model: onnx.ModelProto, graph: Graph) -> None:
    """Gives the dynamic dimensions their names and checks the interface against the manifest's."""
    pairs = [*zip(model.graph.input, graph.inputs, strict=True)]
    pairs += zip(model.graph.output, graph.outputs, strict=True)
    for value, port in pairs:
        dimensions = value.type.tensor_type.shape.dim
        assert value.name == port.name, (value.name, port)
        assert len(dimensions) == len(port.shape), (value.name, port)
        for dimension, size in zip(dimensions, port.shape, strict=True):
            _set_dimension(dimension, size, port)


def _set_dimension(dimension: onnx.TensorShapeProto.Dimension, size: int | str, port: Port) -> None:
    if isinstance(size, str):
        assert not dimension.HasField("dim_value"), f"{port.name}: {size} was frozen by tracing"
        dimension.dim_param = size
    else:
        assert dimension.dim_value in (size, 0), (port, dimension)
        dimension.dim_value = size
