"""Verification keeps only as many graphs loaded as fit its bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from export.parity.graph_runs import LazySessions, file_bytes
from export.quantization.calibrate import StoredArrays


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three graphs that add 1, 2 and 3."""
    return {str(number): _adding(number, tmp_path / f"{number}.onnx") for number in (1, 2, 3)}


def _adding(number: int, path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B"]) for n in "xy")
    amount = helper.make_tensor("amount", TensorProto.FLOAT, [1], [float(number)])
    node = helper.make_node("Add", ["x", "amount"], ["y"])
    graph = helper.make_graph([node], "adding", [x], [y], [amount])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save_model(model, str(path))
    return path


def test_graphs_are_loaded_when_called_and_unloaded_beyond_the_bound(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(map(file_bytes, files.values()))
    monkeypatch.setattr("export.parity.graph_runs.RESIDENT_BYTES", 2 * size)
    run = LazySessions(files)
    held = []
    for key in ("1", "2", "1", "3", "2"):
        (sum_,) = run(key, {"x": np.zeros(1, np.float32)})["y"]
        assert sum_ == int(key)
        held.append(set(run._open))
    assert held == [{"1"}, {"1", "2"}, {"1", "2"}, {"1", "3"}, {"3", "2"}]
    run.close()
    assert run("1", {"x": np.zeros(1, np.float32)})["y"] == 1


def test_stored_arrays_are_read_as_they_were_appended() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4)), np.array(3)]
    stored = StoredArrays()
    for value in arrays:
        stored.append(value)
    assert len(stored) == 3
    for value, read in zip(arrays, stored, strict=True):
        np.testing.assert_array_equal(value, read)
        assert value.dtype == read.dtype
    np.testing.assert_array_equal(stored[-1], arrays[-1])
