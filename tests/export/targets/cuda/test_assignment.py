"""Every node of a CUDA bundle has a kernel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, defs, helper

from export.graphs.to_onnx import OPSET
from export.targets.cuda.assignment import assign
from export.targets.cuda.kernels import NEEDS_CUDNN, TABLE, Kernel, has_kernel, kernels, lacks
from export.targets.cuda.substitutes import substitute
from inference.errors import SetupError
from tests.export.targets.cuda.bundles import floats, node, save


def test_int_arg_max_is_refused_and_its_substitute_is_not(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [node("ArgMax", ["tokens"], "place", axis=-1, keepdims=0)],
        [("tokens", "int64", ["B", "T"])],
        [("place", "int64", ["B"])],
    )
    with pytest.raises(SetupError, match=r"nodes of text: ArgMax-13 of int64 \(1\)"):
        assign(path, "text")
    substitute(path, "text")
    assert assign(path, "text").device == {"ArgMax": 1, "Cast": 1}


def test_last_of_equal_numbers_is_refused(tmp_path: Path) -> None:
    search = node("ArgMax", ["x"], "place", axis=-1, select_last_index=1)
    path = save(
        tmp_path / "g.onnx",
        [search],
        [("x", "float32", ["B", "T"])],
        [("place", "int64", ["B", 1])],
    )
    with pytest.raises(SetupError, match="ArgMax with select_last_index=1"):
        assign(path, "text")


@pytest.mark.parametrize(("dtype", "cache"), [("float32", "float32"), ("float32", "int8")])
def test_grouped_attention_of_the_cpu_is_refused(tmp_path: Path, dtype: str, cache: str) -> None:
    with pytest.raises(SetupError, match=r"nodes of step: GroupQueryAttention-1 of float32"):
        assign(_attention(tmp_path, dtype, cache), "step")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_grouped_attention_in_a_low_type_has_a_kernel(tmp_path: Path, dtype: str) -> None:
    found = assign(_attention(tmp_path, dtype, dtype), "step")
    assert found.device == {"GroupQueryAttention": 1}
    assert found.types == {dtype: 1}


def _attention(folder: Path, dtype: str, cache: str) -> Path:
    """A step of one GroupQueryAttention."""
    shape = ["R", 2, "P", 8]
    inputs = ["packed", "", "", "past_key", "past_value", "lengths", "total"]
    return save(
        folder / "step.onnx",
        [
            node(
                "GroupQueryAttention",
                inputs,
                ["mixed", "present_key", "present_value"],
                domain="com.microsoft",
                num_heads=2,
                kv_num_heads=2,
            )
        ],
        [
            ("packed", dtype, ["R", "T", 48]),
            ("past_key", cache, shape),
            ("past_value", cache, shape),
            ("lengths", "int32", ["R"]),
            ("total", "int32", []),
        ],
        [
            ("mixed", dtype, ["R", "T", 16]),
            ("present_key", cache, shape),
            ("present_value", cache, shape),
        ],
    )


def test_bfloat16_convolution_needs_a_later_opset(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [4, 3, 2, 2], bytes(96), raw=True)

    def at(opset: int) -> Path:
        return save(
            tmp_path / f"{opset}.onnx",
            [node("Conv", ["x", "w"], "y")],
            [("x", "bfloat16", ["B", 3, 8, 8])],
            [("y", "bfloat16", ["B", 4, 7, 7])],
            {"w": weight},
            opset,
        )

    with pytest.raises(SetupError, match=r"nodes of image: Conv-11 of bfloat16 \(1\)"):
        assign(at(20), "image")
    assert assign(at(22), "image").cudnn == ["Conv"]


@pytest.mark.parametrize(
    ("operator", "gates", "more", "reason"),
    [
        ("GRU", 3, {"linear_before_reset": 0}, "GRU with linear_before_reset=0"),
        ("GRU", 3, {}, "GRU with linear_before_reset=0"),
        ("LSTM", 4, {"input_forget": 1}, "LSTM with input_forget"),
        ("LSTM", 4, {"is_peeping": True}, "LSTM with peepholes"),
        ("RNN", 1, {"clip": 3.0}, "RNN with clip"),
    ],
)
def test_recurrent_forms_that_cudnn_lacks_are_refused(
    tmp_path: Path, operator: str, gates: int, more: dict[str, float], reason: str
) -> None:
    attributes = dict(more)
    inputs = ["x", "w", "r"]
    if attributes.pop("is_peeping", False):
        inputs += ["", "", "", "", "p"]
    constants = {"w": floats(1, gates * 4, 5), "r": floats(1, gates * 4, 4), "p": floats(1, 12)}
    path = save(
        tmp_path / "g.onnx",
        [node(operator, inputs, "y", hidden_size=4, **attributes)],
        [("x", "float32", ["T", "B", 5])],
        [("y", "float32", ["T", 1, "B", 4])],
        constants,
    )
    with pytest.raises(SetupError, match=reason):
        assign(path, "admit")


def test_reset_after_gru_has_a_kernel(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [node("GRU", ["x", "w", "r"], "y", hidden_size=4, linear_before_reset=1)],
        [("x", "float16", ["T", "B", 5])],
        [("y", "float16", ["T", 1, "B", 4])],
        {"w": floats(1, 12, 5).astype(np.float16), "r": floats(1, 12, 4).astype(np.float16)},
    )
    assert assign(path, "admit").cudnn == ["GRU"]


def test_arithmetic_may_run_on_the_host_only_with_shapes(tmp_path: Path) -> None:
    """CUDA has no `ReduceProd` of int64."""

    def graph(name: str, source: str) -> Path:
        first = [node("Shape", ["x"], "sizes")] if source == "sizes" else []
        return save(
            tmp_path / name,
            [*first, node("ReduceProd", [source], "count", keepdims=0)],
            [("x", "float32", ["B", "T"]), ("given", "int64", [2])],
            [("count", "int64", [])],
        )

    found = assign(graph("shape.onnx", "sizes"), "text")
    assert found.host == {"ReduceProd": 1}
    with pytest.raises(SetupError, match="ReduceProd-18 of int64"):
        assign(graph("values.onnx", "given"), "text")


def test_nodes_inside_a_scan_are_checked(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Add", ["s", "x"], "t"),
            node("ArgMax", ["ids"], "place"),
            node("Identity", ["t"], "o"),
        ],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("s", "x")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("t", "o")],
    )
    path = save(
        tmp_path / "g.onnx",
        [helper.make_node("Scan", ["s0", "xs"], ["last", "all"], body=body, num_scan_inputs=1)],
        [("s0", "float32", [4]), ("xs", "float32", ["T", 4]), ("ids", "int32", [3])],
        [("last", "float32", [4]), ("all", "float32", ["T", 4])],
    )
    with pytest.raises(SetupError, match="ArgMax-13 of int32"):
        assign(path, "admit")


def test_unknown_operator_is_refused(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [node("Secret", ["x"], "y", domain="com.microsoft")],
        [("x", "float32", [1])],
        [("y", "float32", [1])],
    )
    with pytest.raises(SetupError, match="Secret of float32"):
        assign(path, "text")


def test_size_that_the_device_computes_is_refused(tmp_path: Path) -> None:
    """A cut to the longest row: `total` is on the host, its `Reshape` is not."""
    path = save(
        tmp_path / "step.onnx",
        [
            node("Reshape", ["total", "one"], "stop"),
            node("Slice", ["bias", "start", "stop", "axis"], "cut"),
        ],
        [("bias", "float16", ["R", 2, "T", "P"]), ("total", "int32", [])],
        [("cut", "float16", ["R", 2, "T", "N"])],
        {
            "one": np.array([1], np.int64),
            "start": np.array([0], np.int32),
            "axis": np.array([3], np.int32),
        },
    )
    with pytest.raises(SetupError, match=r"step copies .*: a result of Reshape that Slice reads"):
        assign(path, "step")


def test_input_read_on_both_sides_is_refused(tmp_path: Path) -> None:
    path = save(
        tmp_path / "step.onnx",
        [node("TopK", ["x", "k"], ["best", "ids"]), node("Add", ["k", "ids"], "moved")],
        [("x", "float32", ["R", "V"]), ("k", "int64", [1])],
        [("moved", "int64", ["R", "K"])],
    )
    with pytest.raises(SetupError, match="k, which Add reads on the device and others on the host"):
        assign(path, "topk")


def test_sizes_from_shapes_are_no_copies(tmp_path: Path) -> None:
    path = save(
        tmp_path / "text.onnx",
        [node("Shape", ["ids"], "size"), node("Expand", ["x", "size"], "y")],
        [("ids", "int64", ["B", "T"]), ("x", "float32", [1, "T"])],
        [("y", "float32", ["B", "T"])],
    )
    assert assign(path, "text").device["Expand"] == 1


BF16_GAPS = {
    *("Conv", "Clip", "Pad", "ReduceL2", "ReduceMax", "Less", "Equal", "GRU", "LSTM", "RNN"),
    *("LogSoftmax", "TopK", "Reciprocal", "Cos", "Sin", "Range", "ArgMax"),
}
"""Of the operators in our graphs those that no CUDA kernel computes in bfloat16 at our opset."""


def _since(operator: str) -> int:
    return int(defs.get_schema(operator, OPSET, "").since_version)


def test_table_says_where_it_is_from_and_lists_only_facts() -> None:
    table = json.loads(TABLE.read_text())
    assert "onnxruntime-gpu" in table["source"]
    fields = {"operator", "domain", "since", "until", "types"}
    assert all(set(kernel) <= fields for kernel in table["kernels"])
    listed = set(table["types"].split())
    named = {name for kernel in table["kernels"] for each in kernel["types"].values()
             for name in each.split()}  # fmt: skip
    assert named == listed


def test_fused_attention_has_the_types_that_each_precision_needs() -> None:
    grouped = ("com.microsoft", "GroupQueryAttention", 1)
    for dtype in ("float16", "bfloat16"):
        assert has_kernel(*grouped, {"T": dtype, "T_CACHE": dtype, "M": "int32"})
    assert not has_kernel(*grouped, {"T": "float32", "T_CACHE": "float32", "M": "int32"})
    assert not has_kernel(*grouped, {"T": "float32", "T_CACHE": "int8", "M": "int32"})
    for dtype in ("float32", "float16", "bfloat16"):
        assert has_kernel("com.microsoft", "MultiHeadAttention", 1, {"T": dtype})


def test_what_bfloat16_lacks_is_known() -> None:
    since = {operator: _since(operator) for operator in BF16_GAPS | {"MatMul", "Softmax", "Gelu"}}
    assert set(lacks("bfloat16", since)) == BF16_GAPS
    assert lacks("float16", since) == ["Range"]
    assert has_kernel("", "Conv", 22, {"T": "bfloat16"}), "it has one at a later opset"


def test_kernel_without_an_end_is_for_its_own_version_alone() -> None:
    """As ONNX Runtime decides: a later version of the operator may be another function."""
    types = {"T": frozenset({"float32"})}
    assert Kernel(13, None, types).takes(13, {"T": "float32"})
    assert not Kernel(13, None, types).takes(19, {"T": "float32"})
    assert Kernel(13, 18, types).takes(15, {"T": "float32"})
    assert not Kernel(13, 18, types).takes(13, {"T": "int64"})


def test_operators_that_need_cudnn_have_kernels() -> None:
    assert {operator for _, operator in kernels()} >= NEEDS_CUDNN
