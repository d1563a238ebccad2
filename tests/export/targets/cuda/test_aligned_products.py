"""Products of a vocabulary in aligned sizes, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from export.targets.cuda.aligned_products import align_products
from tests.export.targets.cuda.graphs import node, save

HIDDEN, VOCABULARY = 4, 1027
RANDOM = np.random.default_rng(0)


def graph(path: Path, vocabulary: int = VOCABULARY, *more: onnx.NodeProto) -> Path:
    """An embedding and a product with the same table, and a second product with it."""
    table = RANDOM.normal(size=(vocabulary, HIDDEN)).astype(np.float16)
    bias = RANDOM.normal(size=vocabulary).astype(np.float16)
    nodes = [
        node("Gather", ["table", "tokens"], "h"),
        node("Gemm", ["h", "table", "bias"], "first", transB=1),
        node("Gemm", ["h", "table"], "second", transB=1),
        node("Add", ["first", "second"], "y"),
        *more,
    ]
    inputs = [("tokens", "int64", ["B"])]
    outputs = [("y", "float16", ["B", vocabulary])]
    return save(path, nodes, inputs, outputs, {"table": table, "bias": bias})


def run(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"tokens": np.array([0, 1000, 7])})[0]


def test_products_of_one_table_are_padded_and_cut(tmp_path: Path) -> None:
    path = graph(tmp_path / "g.onnx")
    wanted, model = run(path), onnx.load(path)
    assert align_products(model.graph) == 2
    onnx.save(model, path)
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer}
    assert rows["table"] == rows["bias"] == 1032
    np.testing.assert_array_equal(run(path), wanted)


@pytest.mark.parametrize("vocabulary", [1032, 1021])
def test_aligned_and_small_products_are_left_alone(vocabulary: int, tmp_path: Path) -> None:
    model = onnx.load(graph(tmp_path / "g.onnx", vocabulary))
    before = model.SerializeToString()
    assert align_products(model.graph) == 0
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    "reader",
    [
        node("Transpose", ["table"], "other"),
        node("Gemm", ["wide", "table"], "other"),
        node("Gather", ["table", "tokens"], "other", axis=1),
        node("Add", ["bias", "bias"], "other"),  # of one product, whose table the other one has
    ],
    ids=["whole", "not transposed", "by columns", "bias"],
)
def test_weights_that_others_read_are_left_alone(reader: onnx.NodeProto, tmp_path: Path) -> None:
    path = graph(tmp_path / "g.onnx", VOCABULARY, reader)
    assert align_products(onnx.load(path).graph) == 0
