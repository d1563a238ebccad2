"""Nodes that become others for CUDA, with the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.recurrence.cells import GRU, LSTM, BidirectionalGRU, ResetAfterGRU
from export.layers.recurrence.recurrent_stack import RecurrentLayer
from export.targets.cuda.assignment import assign
from export.targets.cuda.half_precision import halve
from export.targets.cuda.substitutes import align_products, substitute
from inference.bundle.manifest import Graph, Tensor
from tests.export.targets.cuda.bundles import node, save
from tests.export.twins import randomise

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


SUBSTITUTES_HIDDEN = 8
WEIGHTS = {
    name: RANDOM.normal(size=shape).astype(np.float32)
    for name, shape in {
        "w": (SUBSTITUTES_HIDDEN, SUBSTITUTES_HIDDEN),
        "b": SUBSTITUTES_HIDDEN,
        "gain": SUBSTITUTES_HIDDEN,
        "shift": SUBSTITUTES_HIDDEN,
    }.items()
}


def block(number: int, stream: str, branch: str) -> list[onnx.NodeProto]:
    """A biased projection of a branch, added to the stream, and a norm of the sum."""
    product, biased, total = (f"{name}_{number}" for name in ("product", "biased", "sum"))
    return [
        node("MatMul", [branch, "w"], product),
        node("Add", [product, "b"], biased),
        node("Add", [stream, biased] if number % 2 else [biased, stream], total),
        node("LayerNormalization", [total, "gain", "shift"], f"norm_{number}", epsilon=1e-3),
    ]


def first_norm() -> onnx.NodeProto:
    return node("LayerNormalization", ["x", "gain", "shift"], "norm_0", axis=-1)


GRAPHS = {
    "norms in front": [
        first_norm(),
        *block(1, "x", "norm_0"),
        *block(2, "sum_1", "norm_1"),
        node("Mul", ["norm_2", "sum_2"], "y"),
    ],
    "norms behind": [
        first_norm(),
        *block(1, "norm_0", "norm_0"),
        *block(2, "norm_1", "norm_1"),
        node("Identity", ["norm_2"], "y"),
    ],
}


def run_substitutes(path: Path, **more: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(2, 3, SUBSTITUTES_HIDDEN)).astype(np.float32)
    return session.run(["y"], {"x": x, **more})[0]


def operators(path: Path) -> Counter[str]:
    return Counter(each.op_type for each in onnx.load(path).graph.node)


@pytest.mark.parametrize("name", GRAPHS)
def test_residual_sum_and_norm_become_one_node(name: str, tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", SUBSTITUTES_HIDDEN])
    path = save(tmp_path / "g.onnx", GRAPHS[name], [("x", *ports)], [("y", *ports)], WEIGHTS)
    wanted = run_substitutes(path)
    substitute(path, "step")
    found = operators(path)
    assert (found["SkipLayerNormalization"], found["LayerNormalization"], found["Add"]) == (2, 1, 0)
    np.testing.assert_allclose(run_substitutes(path), wanted, rtol=1e-5, atol=1e-5)


def test_bias_that_others_read_stays(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", SUBSTITUTES_HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0"), node("Mul", ["norm_1", "biased_1"], "y")]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    wanted = run_substitutes(path)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 1
    np.testing.assert_allclose(run_substitutes(path), wanted, rtol=1e-5, atol=1e-5)


def test_sum_with_another_shape_is_left_alone(tmp_path: Path) -> None:
    """The kernel takes two terms of one shape; of an input that no norm reads none is known."""
    ports, one = (
        ("float32", ["B", "T", SUBSTITUTES_HIDDEN]),
        ("float32", [1, 1, SUBSTITUTES_HIDDEN]),
    )
    nodes = [first_norm(), *block(1, "shared", "norm_0"), node("Identity", ["norm_1"], "y")]
    inputs = [("x", *ports), ("shared", *one)]
    path = save(tmp_path / "g.onnx", nodes, inputs, [("y", *ports)], WEIGHTS)
    shared = np.ones((1, 1, SUBSTITUTES_HIDDEN), np.float32)
    before, wanted = path.read_bytes(), run_substitutes(path, shared=shared)
    substitute(path, "step")
    assert path.read_bytes() == before
    np.testing.assert_array_equal(run_substitutes(path, shared=shared), wanted)


def test_norm_over_two_axes_is_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", 3, SUBSTITUTES_HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0")]
    nodes[-1] = node("LayerNormalization", ["sum_1", "gain"], "y", axis=-2)  # gain is broadcast
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 0


def test_bias_of_one_number_is_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", SUBSTITUTES_HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0"), node("Identity", ["norm_1"], "y")]
    weights = WEIGHTS | {"b": np.ones(1, np.float32)}
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], weights)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 0


def test_norms_of_other_graphs_are_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", SUBSTITUTES_HIDDEN])
    nodes = GRAPHS["norms behind"]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    before = path.read_bytes()
    substitute(path, "text")
    assert path.read_bytes() == before


def test_norm_of_four_axes_is_left_alone(tmp_path: Path) -> None:
    """The kernel takes two or three."""
    ports = ("float32", ["B", 2, "T", SUBSTITUTES_HIDDEN])
    nodes = GRAPHS["norms behind"]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    before = path.read_bytes()
    substitute(path, "step")
    assert path.read_bytes() == before
