"""Sessions on the CPU whose products of bytes are exact on every processor (D123).

int8 products are unsigned activations by signed weights. AMX and VNNI add such products in 32 bits.
x86 processors without them (AVX2, AVX-512 of 2017) add pairs in 16 bits, which saturate: scores are
wrong, and no error says so. There the same weights are read as unsigned bytes with zero point 128:
another kernel of ONNX Runtime multiplies those exactly, to the same integers. Elsewhere that kernel
is slower, so the form follows the processor when a graph is loaded, and the bundle is one.

ONNX Runtime has such a rewrite (`session.x64quantprecision`); 1.32 fails at a weight that two
products share.

The bits of a signed byte and of the same number plus 128 differ in the highest one alone.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.process_limits import return_memory, thread_count

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_ZERO_POINTS = {"MatMulIntegerToFloat": 5, "DynamicQuantizeMatMul": 3}
"""Operator → position of its weight's zero point; the weight is the second input of each."""
_ZERO = "unsigned_zero"
_FLIP = np.uint8(128)


def use_unsigned_weights(graph: GraphProto, folder: Path) -> dict[str, NDArray[np.uint8]]:
    """Makes all products read unsigned weights, whose values the graph does not hold.

    Args:
        folder: Of the weights that lie beside the graph.

    Returns:
        The values, by name.
    """
    from onnx import TensorProto, numpy_helper

    turned = {node.output[0]: node for node in graph.node if node.op_type == "Transpose"}
    readers: list[tuple[NodeProto, int]] = []
    for node in graph.node:
        if node.op_type in _ZERO_POINTS:
            transposition = turned.get(node.input[1])
            readers.append((node, 1) if transposition is None else (transposition, 0))
            position = _ZERO_POINTS[node.op_type]
            node.input.extend([""] * (position + 1 - len(node.input)))
            node.input[position] = _ZERO
    reading = {(id(node), position) for node, position in readers}
    others = {
        name
        for node in graph.node
        for position, name in enumerate(node.input)
        if (id(node), position) not in reading
    }
    names = {node.input[position] for node, position in readers}
    values = {}
    for tensor in [each for each in graph.initializer if each.name in names]:
        unsigned = _numbers(tensor, folder).view(np.uint8) ^ _FLIP
        added = TensorProto(name=tensor.name, dims=tensor.dims, data_type=TensorProto.UINT8)
        added.data_location = TensorProto.EXTERNAL
        added.external_data.add(key="location", value="memory")  # of no file
        if tensor.name in others:  # a table that tokens are looked up in, too
            added.name = f"{tensor.name}_unsigned"
            for node, position in readers:
                if node.input[position] == tensor.name:
                    node.input[position] = added.name
            graph.initializer.append(added)
        else:
            tensor.CopyFrom(added)
        values[added.name] = unsigned
    graph.initializer.append(numpy_helper.from_array(np.array(_FLIP), _ZERO))
    return values


def _numbers(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    from onnx import numpy_helper
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    if not uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    place = ExternalDataInfo(tensor)
    offset, shape = place.offset or 0, tuple(tensor.dims)
    return np.memmap(folder / place.location, np.int8, "r", offset=offset, shape=shape)


EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"
"""Setting of a session: the folder of the weights that lie beside a graph given as bytes."""
_CPU = "CPUExecutionProvider"
_INPUTS, _OUTPUTS = 64, 32
_ROWS = (1, 8)
"""A single row has a kernel of its own."""
PRODUCTS = (
    b'\x08\t:\xef\x10\n\x1d\n\x01x\n\x06weight\x12\x01y"\rMatMulInteger\x12\x08products*\x91\x10'
    b"\x08@\x08 \x10\x03B\x06weightJ\x80\x10%b"
    b"Z\x17\n\x01x\x12\x12\n\x10\x08\x02\x12\x0c\n\x06\x12\x04rows\n\x02\x08@"
    b"b\x17\n\x01y\x12\x12\n\x10\x08\x06\x12\x0c\n\x06\x12\x04rows\n\x02\x08 B\x04\n\x00\x10\x14"
) % (b"\x7f" * _INPUTS * _OUTPUTS)
"""A graph: bytes (rows, 64) by a matrix (64, 32) of 127. `onnx` would make it, but to import that
takes as long as to load a small model."""


def open_cpu_session(
    model: Path | bytes, options: onnxruntime.SessionOptions, **settings: Any
) -> onnxruntime.InferenceSession:
    """A session on the CPU. Weights of bytes have the form that this processor multiplies exactly.

    Converting them takes their size in memory while the graph is loaded; the session then holds as
    much as without.

    Args:
        model: A file, or a graph whose weights lie in the folder that `EXTERNAL_DATA` names.
        options: Of this session alone: they get its weights, and the threads of `thread_count`.
        settings: Of `InferenceSession`.

    Raises:
        Exception: the graph does not load; the runtime's exceptions share no base class.
    """
    options.intra_op_num_threads = thread_count(options.intra_op_num_threads)
    options.inter_op_num_threads = thread_count(options.inter_op_num_threads)
    weights: dict[str, NDArray[np.uint8]] = {}
    if products_saturate():
        model, weights = _with_unsigned_weights(model, options)
    session = onnxruntime.InferenceSession(model, options, providers=[_CPU], **settings)
    if weights:  # the session has copies of them
        weights.clear()
        return_memory()
    if isinstance(model, bytes):
        session._model_bytes = None  # kept to open it again on another device
    return session


def _with_unsigned_weights(
    model: Path | bytes, options: onnxruntime.SessionOptions
) -> tuple[Path | bytes, dict[str, NDArray[np.uint8]]]:
    """A graph whose products read unsigned weights; the same one if it has no products of bytes.

    Returns:
        The graph, and the weights that the options refer to until a session has been made.
    """
    from google.protobuf.message import DecodeError
    from onnx import load, load_from_string

    try:
        if isinstance(model, Path):
            loaded, folder = load(model, load_external_data=False), model.parent
        else:
            loaded, folder = load_from_string(model), Path(_setting(options, EXTERNAL_DATA))
    except DecodeError:
        return model, {}  # which the runtime refuses by name
    if not any(node.op_type in _ZERO_POINTS for node in loaded.graph.node):
        return model, {}
    weights = use_unsigned_weights(loaded.graph, folder)
    if isinstance(model, Path) and _setting(options, EXTERNAL_DATA) != str(folder):
        options.add_session_config_entry(EXTERNAL_DATA, str(folder))
    values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
    options.add_external_initializers([*weights], [*values])
    return loaded.SerializeToString(), weights


def _setting(options: onnxruntime.SessionOptions, name: str) -> str:
    try:
        value: str = options.get_session_config_entry(name)
    except RuntimeError:  # it has not been made
        return ""
    return value


@cache
def products_saturate() -> bool:
    """Whether products of unsigned by signed bytes saturate here: computed, not looked up."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(PRODUCTS, options, providers=[_CPU])
    exact = 255 * 127 * _INPUTS
    return any(
        (session.run(None, {"x": np.full((rows, _INPUTS), 255, np.uint8)})[0] != exact).any()
        for rows in _ROWS
    )
