"""The committed table of CUDA kernels, and how a kernel is looked up in it."""

from __future__ import annotations

import json

from onnx import defs

from export.graphs.to_onnx import OPSET
from export.targets.cuda.kernels import NEEDS_CUDNN, TABLE, Kernel, has_kernel, kernels, lacks

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
