"""Planted faults: what TensorRT refuses, and what it builds all the same, so we refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import defs

from export.parity.graph_runs import bundle_path
from export.targets.cuda.float32_nodes import Islands
from export.targets.cuda.half_precision import halve
from export.targets.cuda.kernels import Kernels
from export.targets.tensorrt.checks import (
    TENSORRT,
    check_constants,
    check_operators,
    check_positions,
    operators,
)
from export.targets.tensorrt.lowering import check_profiles, with_profiles
from inference.bundle.manifest import Graph, Limits, Profile, Role, Tensor
from inference.bundle.reader import newest_bundle
from inference.errors import SetupError
from serving.tensorrt.builder import Target, build_plan
from tests.export.targets.cuda.graphs import node, save
from tests.export.targets.tensorrt.test_tensorrt import normalised, with_table
from tests.tensorrt.test_graphs import CHECKPOINTS
from triptych.cli import run

pytestmark = pytest.mark.full

ROWS = Profile(shapes={"x": ((1, 4), (8, 4), (64, 4))})
TOKENS = Graph(
    file="model.onnx",
    inputs=(
        Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
    ),
    outputs=(),
)


def test_committed_list_of_operators_is_the_parsers(library: Any) -> None:
    builder = library.Builder(library.Logger(library.Logger.ERROR))
    parser = library.OnnxParser(builder.create_network(0), library.Logger(library.Logger.ERROR))
    names = {schema.name for schema in defs.get_all_schemas() if schema.domain == ""}
    assert {name for name in names if parser.supports_operator(name)} == operators()


def test_operator_that_the_parser_lacks(target: Target, tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        [node("Multinomial", ["x"], "y", dtype=6, sample_size=1)],
        [("x", "float32", ["B", 4])],
        [("y", "int32", ["B", 1])],
    )
    with pytest.raises(SetupError, match=r"TensorRT cannot read model\.onnx: .*Multinomial"):
        build_plan(target, path, (ROWS,))
    with pytest.raises(SetupError, match="no operator for nodes of x: Multinomial"):
        check_operators(path, "x")


def test_fused_attention_of_onnx_runtime(target: Target, tmp_path: Path) -> None:
    """The graph of the CPU's bundle, which has no profiles either."""
    name = "example-bert-sentiment"
    assert run(["export", str(CHECKPOINTS / name), "--repository", str(tmp_path)]) == 0
    bundle = newest_bundle(tmp_path, name)
    graph = with_profiles(bundle.manifest.graphs["text"], bundle.manifest.limits, "text")
    path = bundle_path(bundle, "text")
    with pytest.raises(SetupError, match=r"TensorRT cannot \w+ model\.onnx"):
        build_plan(target, path, graph.profiles)
    with pytest.raises(SetupError, match=r"com\.microsoft\.MultiHeadAttention"):
        check_operators(path, "text")


def test_profile_that_leaves_out_a_bucket_is_built_and_refused_by_us(
    target: Target, tmp_path: Path
) -> None:
    path = with_table(tmp_path / "model.onnx", is_gathered=False)
    graph = with_profiles(TOKENS, Limits(max_input_tokens=16), "text")
    narrow = tuple(
        Profile(
            shapes={
                name: (least, tuned, (largest[0], *(8 for _ in largest[1:])))
                for name, (least, tuned, largest) in profile.shapes.items()
            }
        )
        for profile in graph.profiles
    )
    assert build_plan(target, path, narrow)[0]
    cut = graph.model_copy(update={"profiles": narrow})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 1, T = 16"):
        check_profiles(cut, Limits(max_input_tokens=16), "text")


@pytest.mark.parametrize("is_gathered", [True, False])
def test_positions_beyond_the_table(is_gathered: bool, target: Target, tmp_path: Path) -> None:
    """TensorRT warns of a sliced table, which we make an error, and never of a gathered one."""
    path = with_table(tmp_path / "model.onnx", is_gathered=is_gathered)
    beyond = with_profiles(TOKENS, Limits(max_input_tokens=24), "text")
    if is_gathered:
        assert build_plan(target, path, beyond.profiles)[0]
    else:
        with pytest.raises(SetupError, match="has shapes that its graph cannot have"):
            build_plan(target, path, beyond.profiles)
    with pytest.raises(SetupError, match="text does not compute 24 tokens"):
        check_positions(path, beyond, "text")


def test_clamp_that_underflows_in_float16_is_built_and_refused_by_us(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Islands, "_go_forward", lambda self, index, node: None)
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", "float16", frozenset(), TENSORRT)
    assert build_plan(target, path, (ROWS,))[0]
    with pytest.raises(SetupError, match="is 0 in float16"):
        check_constants(path, "text")


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_lstm_of_a_low_type_is_refused_by_the_parser(
    low: str, target: Target, tmp_path: Path
) -> None:
    """With lengths, as ours are: why `operators.py` has recurrent operators in float32 alone."""
    profile = Profile(shapes={**ROWS.shapes, "lengths": ((1,), (8,), (64,))})
    weights = np.ones((1, 16, 4), np.float32)
    path = save(
        tmp_path / "model.onnx",
        [
            node("Unsqueeze", ["x", "first"], "sequence"),
            node("LSTM", ["sequence", "w", "w", "", "lengths"], ["h"], hidden_size=4),
            node("MatMul", ["h", "last"], "y"),
        ],
        [("x", "float32", ["B", 4]), ("lengths", "int32", ["B"])],
        [("y", "float32", [1, 1, "B", 4])],
        {"w": weights, "first": np.array([0]), "last": np.eye(4, dtype=np.float32)},
    )
    assert build_plan(target, path, (profile,))[0]
    halve(path, "text", low, frozenset(), Kernels("all", lambda *operator: True))
    with pytest.raises(SetupError, match=r"TensorRT cannot read model\.onnx"):
        build_plan(target, path, (profile,))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"x": ((8, 4), (1, 4), (64, 4))}, "a profile of model.onnx is not valid"),
        ({"x": ((1, 4, 1), (8, 4, 1), (64, 4, 1))}, "TensorRT cannot build model.onnx"),
        ({"other": ((1, 4), (8, 4), (64, 4))}, "TensorRT cannot build model.onnx"),
        ({"x": ((1, 5), (8, 5), (64, 5))}, "model.onnx"),
    ],
)
def test_profile_that_is_wrong(
    shapes: dict[str, Any], reason: str, target: Target, tmp_path: Path
) -> None:
    path = normalised(tmp_path / "model.onnx")
    with pytest.raises(SetupError, match=reason):
        build_plan(target, path, (Profile(shapes=shapes),))
