"""What is found at export, because a plan would be built all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.targets.cuda.float32_nodes import Islands
from export.targets.cuda.half_precision import halve
from export.targets.tensorrt.checks import check_constants, check_positions
from export.targets.tensorrt.operators import TENSORRT, check_operators, operators
from export.targets.tensorrt.profiles import with_profiles
from inference.bundle.manifest import Graph, Limits, Role, Tensor
from inference.errors import SetupError
from tests.export.targets.cuda.graphs import node, save


def normalised(path: Path) -> Path:
    """The product over its L2 norm, clamped at 1e-12."""
    return save(
        path,
        [
            node("MatMul", ["x", "w"], "h"),
            node("Mul", ["h", "h"], "square"),
            node("ReduceSum", ["square", "axes"], "sum", keepdims=1),
            node("Sqrt", ["sum"], "norm"),
            node("Clip", ["norm", "least"], "clamped"),
            node("Div", ["h", "clamped"], "unit"),
            node("MatMul", ["unit", "w"], "y"),
        ],
        [("x", "float32", ["B", 4])],
        [("y", "float32", ["B", 4])],
        {
            "w": np.eye(4, dtype=np.float32),
            "axes": np.array([-1]),
            "least": np.array(1e-12, np.float32),
        },
    )


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_clamp_of_a_divisor_stays_float32(low: str, tmp_path: Path) -> None:
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", low, frozenset(), TENSORRT)
    check_constants(path, "text")
    assert set(check_operators(path, "text")) == {"float32", low}


def test_clamp_that_underflows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: no islands, so 1e-12 becomes 0 in float16."""
    monkeypatch.setattr(Islands, "_go_forward", lambda self, index, node: None)
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", "float16", frozenset(), TENSORRT)
    with pytest.raises(SetupError, match=r"clamp \(Clip\) in text is 0 in float16"):
        check_constants(path, "text")


def with_table(path: Path, *, is_gathered: bool) -> Path:
    """Tokens' embeddings plus those of their positions, of a table of 16."""
    table = np.ones((16, 4), np.float32)
    reading = (
        [
            node("Range", ["zero", "length", "one"], "places"),
            node("Gather", ["table", "places"], "position"),
        ]
        if is_gathered
        else [
            node("Unsqueeze", ["length", "zeros"], "end"),
            node("Slice", ["table", "zeros", "end", "zeros"], "position"),
        ]
    )
    return save(
        path,
        [
            node("Shape", ["token_ids"], "shape"),
            node("Gather", ["shape", "one"], "length"),
            *reading,
            node("Gather", ["words", "token_ids"], "word"),
            node("Add", ["word", "position"], "embedding"),
        ],
        [("token_ids", "int64", ["B", "T"]), ("lengths", "int32", ["B"])],
        [("embedding", "float32", ["B", "T", 4])],
        {
            "table": table,
            "words": table,
            "zero": np.array(0),
            "one": np.array(1),
            "zeros": np.array([0]),
        },
    )


@pytest.mark.parametrize("is_gathered", [True, False])
def test_limit_beyond_the_table_of_positions_is_refused(is_gathered: bool, tmp_path: Path) -> None:
    """A planted fault: the manifest's limit is larger than the table."""
    path = with_table(tmp_path / "model.onnx", is_gathered=is_gathered)
    graph = Graph(
        file="model.onnx",
        inputs=(
            Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
            Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
        ),
        outputs=(),
    )
    fits = with_profiles(graph, Limits(max_input_tokens=16), "text")
    check_positions(path, fits, "text")
    beyond = with_profiles(graph, Limits(max_input_tokens=17), "text")
    with pytest.raises(SetupError, match="text does not compute 17 tokens, the checkpoint's own"):
        check_positions(path, beyond, "text")


def test_operators_that_the_parser_lacks_are_refused_with_their_graph(tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
            node("Gelu", ["x"], "z", domain="com.microsoft"),
            node("DequantizeLinear", ["q", "scale", "zero"], "y"),
        ],
        [("x", "float32", ["B", 4])],
        [("y", "float32", ["B", 4]), ("z", "float32", ["B", 4])],
    )
    with pytest.raises(SetupError) as refused:
        check_operators(path, "image")
    assert refused.value.message == (
        "TensorRT has no operator for nodes of image: DynamicQuantizeLinear (1), "
        "com.microsoft.Gelu (1): export standard operators"
    )


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent_operators_have_float32_alone(operator: str) -> None:
    assert operator in operators()
    assert TENSORRT.has("", operator, 14, {"T": "float32"})
    assert not TENSORRT.has("", operator, 14, {"T": "float16"})


def test_operators_of_one_low_type_alone() -> None:
    assert TENSORRT.has("", "Conv", 11, {"T": "bfloat16"})
    assert TENSORRT.has("", "HardSwish", 14, {"T": "float16"})
    assert not TENSORRT.has("", "HardSwish", 14, {"T": "bfloat16"})
