"""Graphs whose weights stay on disk: each tensor is read, and written, by itself.

`onnx.load` holds all weights, and a message frees none of them before it is dropped as a whole:
rewriting a graph with it needs several times its size.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx_ir import external_data, serde

EXTERNAL_DATA_BYTES = SHARING_BYTES = 64 << 20
"""Larger weights lie beside the graph: protobuf ends at 2 GiB, and writing or parsing a message
holds its weights in memory up to four times. Smaller graphs keep them inside, where the engine
joins further nodes to them (`inference/engine/runners/ort/greedy_graph.py`)."""
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
        _move_out((tensor for tensor in weights if weight_bytes(tensor) > SMALL_BYTES), path)
    else:
        for tensor in weights:
            if tensor.data_location == TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(values(tensor, path.parent), tensor.name))
        data.unlink(missing_ok=True)
    _write(model, path)


def share_weights(graphs: Sequence[Path]) -> None:
    """Stores weights once that several graphs of a folder hold, in the file beside the first.

    ONNX Runtime maps these files: sessions share the pages that they have not repacked. `save`
    replaces a file that later graphs may read: rewrite the last graph first.

    Args:
        graphs: Files of one folder, all of them complete.
    """
    models = {path: open_graph(path) for path in graphs}
    found = {
        path: [
            (each, _digest(each, path.parent))
            for each in model.graph.initializer
            if weight_bytes(each) > SMALL_BYTES
        ]
        for path, model in models.items()
        if sum(map(weight_bytes, model.graph.initializer)) > SHARING_BYTES
    }
    counts = Counter(digest for pairs in found.values() for _, digest in pairs)
    places: dict[bytes, TensorProto] = {}
    for path, pairs in found.items():
        if all(counts[digest] == 1 for _, digest in pairs):
            continue
        own = {digest: tensor for tensor, digest in pairs if digest not in places}
        _move_out(own.values(), path)
        places |= own
        for tensor, digest in pairs:
            beside = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
            beside.data_location = TensorProto.EXTERNAL
            beside.external_data.extend(places[digest].external_data)
            tensor.CopyFrom(beside)
        _write(models[path], path)


def _digest(tensor: TensorProto, folder: Path) -> bytes:
    """Equal for tensors of one type whose values have the same bits."""
    numbers = np.ascontiguousarray(values(tensor, folder)).reshape(-1).view(np.uint8).data
    return blake2b(numbers, person=tensor.data_type.to_bytes(2)).digest()


def _move_out(tensors: Iterable[TensorProto], path: Path) -> None:
    """Writes weights of a graph, wherever they lie, to the file beside it; replaces the file."""
    tensors, data = list(tensors), data_path(path)
    if not tensors:
        data.unlink(missing_ok=True)
        return
    read = [serde.deserialize_tensor(tensor, path.parent) for tensor in tensors]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = external_data.convert_tensors_to_external(
            read, folder, data.name, alignment=PAGE, align_threshold=0
        )
        Path(folder, data.name).replace(data)
    for tensor, place in zip(tensors, written, strict=True):
        tensor.CopyFrom(serde.serialize_tensor(place))


def _write(model: onnx.ModelProto, path: Path) -> None:
    onnx.save_model(model, str(path))
    onnx.checker.check_model(str(path))
