"""Residual sums and norms become one node, with the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from export.targets.cuda.substitutes import substitute
from tests.export.targets.cuda.graphs import node, save

HIDDEN = 8
RANDOM = np.random.default_rng(0)
WEIGHTS = {
    name: RANDOM.normal(size=shape).astype(np.float32)
    for name, shape in {"w": (HIDDEN, HIDDEN), "b": HIDDEN, "gain": HIDDEN, "shift": HIDDEN}.items()
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


def run(path: Path, **more: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(2, 3, HIDDEN)).astype(np.float32)
    return session.run(["y"], {"x": x, **more})[0]


def operators(path: Path) -> Counter[str]:
    return Counter(each.op_type for each in onnx.load(path).graph.node)


@pytest.mark.parametrize("name", GRAPHS)
def test_residual_sum_and_norm_become_one_node(name: str, tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", HIDDEN])
    path = save(tmp_path / "g.onnx", GRAPHS[name], [("x", *ports)], [("y", *ports)], WEIGHTS)
    wanted = run(path)
    substitute(path, "step")
    found = operators(path)
    assert (found["SkipLayerNormalization"], found["LayerNormalization"], found["Add"]) == (2, 1, 0)
    np.testing.assert_allclose(run(path), wanted, rtol=1e-5, atol=1e-5)


def test_bias_that_others_read_stays(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0"), node("Mul", ["norm_1", "biased_1"], "y")]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    wanted = run(path)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 1
    np.testing.assert_allclose(run(path), wanted, rtol=1e-5, atol=1e-5)


def test_sum_with_another_shape_is_left_alone(tmp_path: Path) -> None:
    """The kernel takes two terms of one shape; of an input that no norm reads none is known."""
    ports, one = ("float32", ["B", "T", HIDDEN]), ("float32", [1, 1, HIDDEN])
    nodes = [first_norm(), *block(1, "shared", "norm_0"), node("Identity", ["norm_1"], "y")]
    inputs = [("x", *ports), ("shared", *one)]
    path = save(tmp_path / "g.onnx", nodes, inputs, [("y", *ports)], WEIGHTS)
    shared = np.ones((1, 1, HIDDEN), np.float32)
    before, wanted = path.read_bytes(), run(path, shared=shared)
    substitute(path, "step")
    assert path.read_bytes() == before
    np.testing.assert_array_equal(run(path, shared=shared), wanted)


def test_norm_over_two_axes_is_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", 3, HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0")]
    nodes[-1] = node("LayerNormalization", ["sum_1", "gain"], "y", axis=-2)  # gain is broadcast
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 0


def test_bias_of_one_number_is_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", HIDDEN])
    nodes = [first_norm(), *block(1, "x", "norm_0"), node("Identity", ["norm_1"], "y")]
    weights = WEIGHTS | {"b": np.ones(1, np.float32)}
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], weights)
    substitute(path, "step")
    assert operators(path)["SkipLayerNormalization"] == 0


def test_norms_of_other_graphs_are_left_alone(tmp_path: Path) -> None:
    ports = ("float32", ["B", "T", HIDDEN])
    nodes = GRAPHS["norms behind"]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    before = path.read_bytes()
    substitute(path, "text")
    assert path.read_bytes() == before


def test_norm_of_four_axes_is_left_alone(tmp_path: Path) -> None:
    """The kernel takes two or three."""
    ports = ("float32", ["B", 2, "T", HIDDEN])
    nodes = GRAPHS["norms behind"]
    path = save(tmp_path / "g.onnx", nodes, [("x", *ports)], [("y", *ports)], WEIGHTS)
    before = path.read_bytes()
    substitute(path, "step")
    assert path.read_bytes() == before
