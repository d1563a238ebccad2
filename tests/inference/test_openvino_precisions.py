"""Precisions that OpenVINO computes otherwise on some processors: they are refused there."""

import platform
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from inference.engine.runners.openvino.runner import PagedRunner
from inference.errors import BundleError
from inference.openvino_core import scales_activations, why_not_here
from inference.saturation import products_saturate
from inference.stateless.compiled_graphs import CompiledGraphs
from inference.stateless.sessions import InvalidArgument
from tests.inference.engine.runners.openvino.conftest import with_precision
from tests.inference.engine.toy_bundles import language_bundle


def test_activations_are_rounded_where_products_of_bytes_are_exact() -> None:
    """Both need VNNI."""
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 has VNNI")
    assert scales_activations() != products_saturate()


@pytest.fixture
def other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without VNNI and bfloat16."""
    monkeypatch.setattr("inference.openvino_core.has_bf16", lambda: False)
    monkeypatch.setattr("inference.openvino_core.scales_activations", lambda: False)


@pytest.mark.usefixtures("other_processor")
@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        ("int8", "no VNNI, .*; export with --runtime onnxruntime --precision int8, or serve it"),
        ("int4", "no VNNI, .*; export with --runtime onnxruntime --precision int8, or serve it"),
        ("bf16", "no bfloat16, .*; export with --precision fp32, or serve it"),
    ],
)
def test_generators_that_would_answer_otherwise_are_not_loaded(
    precision: str, reason: str, tmp_path: Path
) -> None:
    bundle = with_precision(precision, language_bundle(tmp_path))
    with pytest.raises(BundleError, match=f"in {precision} with OpenVINO here: .* {reason}"):
        PagedRunner(bundle, 2)


@pytest.mark.usefixtures("other_processor")
def test_bf16_of_a_stateless_graph_is_not_loaded_either(tmp_path: Path) -> None:
    config = {
        "name": "negate",
        "input": [{"name": "x"}],
        "output": [{"name": "y"}],
        "parameters": {"inference_precision": {"string_value": "bf16"}},
    }
    with pytest.raises(InvalidArgument, match="export with --precision fp32 or int8, or serve it"):
        CompiledGraphs(_negation(tmp_path), config)


@pytest.mark.usefixtures("other_processor")
def test_fp32_and_stateless_int8_need_nothing() -> None:
    assert why_not_here("fp32", is_generator=True) is None
    assert why_not_here("int8", is_generator=False) is None


def _negation(folder: Path) -> Path:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "negate", ports[:1], ports[1:]
    )
    file = folder / "negate.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
    return file
