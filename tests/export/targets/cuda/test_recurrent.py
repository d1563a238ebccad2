"""Recurrent layers for CUDA, whose operator lacks the papers' GRU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.recurrence.cells import GRU, LSTM, ResetAfterGRU
from export.layers.recurrence.recurrent import BidirectionalGRU
from export.layers.recurrence.recurrent_stack import RecurrentLayer
from export.targets.cuda.assignment import assign
from export.targets.cuda.half_precision import halve
from inference.bundle.manifest import Graph, Tensor
from tests.export.twins import randomise

GRAPH = Graph(
    file="model.onnx",
    inputs=(
        Tensor(name="x", dtype="float32", shape=("B", "T", 5)),
        Tensor(name="lengths", dtype="int32", shape=("B",)),
    ),
    outputs=(Tensor(name="states", dtype="float32", shape=("B", "T", 12)),),
)


def _layer(kind: str) -> nn.Module:
    cells = {"gru": GRU, "reset-after": ResetAfterGRU, "lstm": LSTM}
    if kind == "bahdanau":
        layer: nn.Module = BidirectionalGRU(5, 6)
    else:
        layer = RecurrentLayer(cells[kind], 5, 6, is_bidirectional=True)
    randomise(layer)
    return layer.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("bahdanau", "Scan"),
        pytest.param("gru", "Scan", marks=pytest.mark.full),
        pytest.param("reset-after", "GRU", marks=pytest.mark.full),
        pytest.param("lstm", "LSTM", marks=pytest.mark.full),
    ],
)
def test_layer_has_the_operator_that_cuda_has(kind: str, operator: str, tmp_path: Path) -> None:
    layer, path = _layer(kind), tmp_path / "model.onnx"
    to_onnx(Lowering(layer, GRAPH, is_for_cuda=True), path)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert operator in operators
    assert not {"Scan", "GRU", "LSTM"} - {operator} & operators
    assign(path, "admit")
    random = np.random.default_rng(0)
    x = random.standard_normal((3, 7, 5)).astype(np.float32)
    lengths = np.array([7, 2, 5], np.int32)
    with torch.no_grad():
        wanted = layer(torch.from_numpy(x), torch.from_numpy(lengths)).numpy()
    given = _run(path, x, lengths)
    assert np.abs(given - wanted).max() < 1e-5
    halve(path, "admit", "float16", set())
    assign(path, "admit")
    assert np.abs(_run(path, x, lengths) - wanted).max() < 5e-3


def _run(path: Path, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path))
    (states,) = session.run(["states"], {"x": x, "lengths": lengths})
    return np.asarray(states, np.float32)
