"""Graphs whose weights stay on disk: each tensor is read, and written, by itself.

`onnx.load` holds all weights, and a message frees none of them before it is dropped as a whole:
rewriting a graph with it needs several times its size.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, set_external_data

EXTERNAL_DATA_BYTES = 256 << 20
"""Larger weights lie beside the graph: protobuf ends at 2 GiB, and writing or parsing a message
holds its weights in memory two or three times."""
SMALL_BYTES = 1024
"""Tensors up to this size stay in the graph, where shape inference reads them."""
PAGE = 4096
"""Alignment of a tensor in the file, so that ONNX Runtime can map it."""


def data_path(graph: Path) -> Path:
    """The file of the weights that lie beside a graph."""
    return graph.with_name(f"{graph.name}.data")


def open_graph(path: Path) -> onnx.ModelProto:
    """A graph without the weights that lie beside it; see `values`."""
    return onnx.load(str(path), load_external_data=False)


def values(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """A tensor's values; of weights beside the graph, a read-only view of the file."""
    if not _is_outside(tensor):
        return numpy_helper.to_array(tensor)
    place = ExternalDataInfo(tensor)
    return np.memmap(
        folder / place.location,
        dtype=helper.tensor_dtype_to_np_dtype(tensor.data_type),
        mode="r",
        offset=place.offset or 0,
        shape=tuple(tensor.dims),
    )


def weight_bytes(tensor: TensorProto) -> int:
    """Size of a tensor's values, wherever they lie."""
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.data_type in (TensorProto.UINT4, TensorProto.INT4):
        return -(-count // 2)
    return count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a checked graph; large weights go to `<file>.data` beside it.

    Args:
        model: Its weights may lie in that very file: it is replaced when the new one is complete.
    """
    data = data_path(path)
    weights = model.graph.initializer
    if sum(map(weight_bytes, weights)) > EXTERNAL_DATA_BYTES:
        new = data.with_name(f"{data.name}.new")
        with new.open("wb") as file:
            for tensor in weights:
                if weight_bytes(tensor) > SMALL_BYTES:
                    _move_out(tensor, path.parent, file, data.name)
        new.replace(data)
    else:
        for tensor in filter(_is_outside, weights):
            tensor.CopyFrom(numpy_helper.from_array(values(tensor, path.parent), tensor.name))
        data.unlink(missing_ok=True)
    onnx.save_model(model, str(path))
    onnx.checker.check_model(str(path))


def _is_outside(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _move_out(tensor: TensorProto, folder: Path, file: IO[bytes], location: str) -> None:
    """Writes a tensor's values to the end of a file, and to the tensor where they are."""
    is_packed = not _is_outside(tensor) and tensor.HasField("raw_data")
    content = tensor.raw_data if is_packed else np.ascontiguousarray(values(tensor, folder)).data
    file.seek(-file.tell() % PAGE, 1)
    start = file.tell()
    file.write(content)
    for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    tensor.raw_data = b""  # `set_external_data` requires the field
    set_external_data(tensor, location, offset=start, length=file.tell() - start)
    tensor.ClearField("raw_data")
