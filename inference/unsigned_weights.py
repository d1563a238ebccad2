"""int8 weights of a graph as unsigned bytes, for processors whose products saturate (D123).

The bits of a signed byte and of the same number plus 128 differ in the highest one alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

_ZERO_POINTS = {"MatMulIntegerToFloat": 5, "DynamicQuantizeMatMul": 3}
"""Operator → position of its weight's zero point; the weight is the second input of each."""
_ZERO = "unsigned_zero"
_FLIP = np.uint8(128)


def has_products_of_bytes(graph: GraphProto) -> bool:
    """Whether a graph multiplies activations by int8 weights."""
    return any(node.op_type in _ZERO_POINTS for node in graph.node)


def use_unsigned_weights(graph: GraphProto, folder: Path, copies: Path) -> None:
    """Changes the weights of all products in place.

    Args:
        folder: Of the weights that lie beside the graph.
        copies: Another one, which gets the changed weights that lie beside it.
    """
    for location in {ExternalDataInfo(t).location for t in _beside(graph)}:
        shutil.copyfile(folder / location, copies / location)
    turned = {node.output[0]: node for node in graph.node if node.op_type == "Transpose"}
    readers: list[tuple[NodeProto, int]] = []
    for node in graph.node:
        if node.op_type in _ZERO_POINTS:
            transposition = turned.get(node.input[1])
            readers.append((node, 1) if transposition is None else (transposition, 0))
            position = _ZERO_POINTS[node.op_type]
            node.input.extend([""] * (position + 1 - len(node.input)))
            node.input[position] = _ZERO
    names = {node.input[position] for node, position in readers}
    reading = {(id(node), position) for node, position in readers}
    shared = {
        name
        for node in graph.node
        for position, name in enumerate(node.input)
        if name in names and (id(node), position) not in reading
    }
    for tensor in [each for each in graph.initializer if each.name in names]:
        if tensor.name not in shared:
            _flip(tensor, copies)
            continue
        unsigned = graph.initializer.add()
        unsigned.CopyFrom(_duplicate(tensor, copies))
        _flip(unsigned, copies)
        for node, position in readers:
            if node.input[position] == tensor.name:
                node.input[position] = unsigned.name
    graph.initializer.append(numpy_helper.from_array(np.array(_FLIP), _ZERO))


def _beside(graph: GraphProto) -> list[TensorProto]:
    return [tensor for tensor in graph.initializer if uses_external_data(tensor)]


def _flip(tensor: TensorProto, folder: Path) -> None:
    """Makes the numbers of a tensor unsigned, where they lie."""
    if uses_external_data(tensor):
        place = ExternalDataInfo(tensor)
        size = int(np.prod(tensor.dims, dtype=np.int64))
        path = folder / place.location
        content = np.memmap(path, np.uint8, "r+", offset=place.offset or 0, shape=(size,))
        np.bitwise_xor(content, _FLIP, out=content)
    else:
        unsigned = numpy_helper.to_array(tensor).view(np.uint8) ^ _FLIP
        tensor.CopyFrom(numpy_helper.from_array(unsigned, tensor.name))
    tensor.data_type = TensorProto.UINT8


def _duplicate(tensor: TensorProto, folder: Path) -> TensorProto:
    """A second tensor with the same numbers, for a table that tokens are looked up in, too."""
    copied = TensorProto()
    copied.CopyFrom(tensor)
    copied.name = f"{tensor.name}_unsigned"
    if uses_external_data(tensor):
        place = ExternalDataInfo(tensor)
        size = int(np.prod(tensor.dims, dtype=np.int64))
        path = folder / place.location
        content = np.memmap(path, np.uint8, "r", offset=place.offset or 0, shape=(size,))
        with path.open("ab") as file:
            file.write(bytes(-file.tell() % 4096))  # tensors begin at pages, to be mapped
            offset = file.tell()
            file.write(content.data)
        for entry in copied.external_data:
            if entry.key == "offset":
                entry.value = str(offset)
    return copied
