"""Graphs whose weights stay on disk: each tensor is read, and written, by itself.

`onnx.load` holds all weights, and a message frees none of them before it is dropped as a whole:
rewriting a graph with it needs several times its size.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx_ir import external_data, serde

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
    return serde.deserialize_tensor(tensor, folder).numpy()


def weight_bytes(tensor: TensorProto) -> int:
    """Size of a tensor's values, wherever they lie."""
    return serde.deserialize_tensor(tensor).nbytes


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a checked graph; large weights go to `<file>.data` beside it.

    Args:
        model: Its weights may lie in that very file: it is replaced when the new one is complete.
    """
    data, weights = data_path(path), model.graph.initializer
    if sum(map(weight_bytes, weights)) > EXTERNAL_DATA_BYTES:
        large = [tensor for tensor in weights if weight_bytes(tensor) > SMALL_BYTES]
        read = [serde.deserialize_tensor(tensor, path.parent) for tensor in large]
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = external_data.convert_tensors_to_external(
                read, folder, data.name, alignment=PAGE, align_threshold=0
            )
            Path(folder, data.name).replace(data)
        for tensor, place in zip(large, written, strict=True):
            tensor.CopyFrom(serde.serialize_tensor(place))
    else:
        for tensor in weights:
            if tensor.data_location == TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(values(tensor, path.parent), tensor.name))
        data.unlink(missing_ok=True)
    onnx.save_model(model, str(path))
    onnx.checker.check_model(str(path))
