"""Bundles for OpenVINO: equal to PyTorch in float32, close and batch-invariant below."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from export.graphs.to_onnx import to_onnx
from export.parity.judge import TOLERANCE
from export.parity.verify import ParityError, Report, verify
from export.pipeline.manifest import Request, build_manifest
from export.precision import Precision, Runtime
from export.quantization.lower_precision import lower_precision
from export.quantization.quantize_static import stems
from export.targets.runtime_choice import check_runtime
from export.targets.runtime_choice import lower_for as lowered_for
from inference.bundle.manifest import Bundle
from inference.errors import SetupError
from inference.openvino_core import has_bf16
from tests.export.conftest import TwinPair, Twins
from tests.export.twin import EXPORTED
from tests.programs import run_program
from tests.shared_folders import made_once, shared_folder

Bundles = Callable[[TwinPair], Bundle]


@pytest.fixture
def bundle_of(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Bundles:
    """Twin → a copy of its float32 bundle for OpenVINO, which is exported once a session."""

    def build(twin: TwinPair) -> Bundle:
        graphs = twin.graphs()
        wanted = Request("twin", runtime=Runtime.OPENVINO)
        manifest, _ = build_manifest(wanted, 1, twin.source, graphs)

        def export(folder: Path) -> None:
            for key, lowering in graphs.lowerings.items():
                target = folder / manifest.parts[key]
                target.mkdir(parents=True, exist_ok=True)
                to_onnx(lowered_for(lowering, Runtime.OPENVINO), target / lowering.graph.file)

        shared = shared_folder(tmp_path_factory, request.config)
        made = made_once(shared / f"openvino-{twin.checkpoint.folder.name}", export)
        shutil.copytree(made, tmp_path / "bundle")
        return Bundle(tmp_path / "bundle" / manifest.name, manifest)

    return build


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"), [("bert", EXPORTED), pytest.param("clip", "plain", marks=pytest.mark.full)]
)
def test_graphs_equal_pytorch_and_lower_precisions_do_not_depend_on_the_batch(
    name: str, config: str, twins: Twins, bundle_of: Bundles
) -> None:
    twin = twins(name, config)
    graphs, bundle = twin.graphs(), bundle_of(twin)
    report = verify(graphs, bundle)
    assert report.worst_difference < TOLERANCE
    lower = [Precision.BF16, Precision.INT8] if has_bf16() else [Precision.INT8]
    for precision in lower:
        lower_precision(report, graphs, bundle, precision)
        assert report.int8["rows_alone"] >= 10
        assert 0.98 < report.int8["least_cosine"] < 1
    assert report.int8["layers"] >= 10


@pytest.mark.slow
def test_scales_that_do_not_suit_a_checkpoint_are_refused_with_the_command_that_helps(
    twins: Twins, bundle_of: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = twins("bert", EXPORTED)
    bundle, graphs = bundle_of(twin), twin.graphs()
    monkeypatch.setattr("export.quantization.int8_parity.LEAST_COSINE", 1.01)
    if has_bf16():
        with pytest.raises(ParityError, match=r"1\.01 is required; nothing was published$"):
            lower_precision(Report(), graphs, bundle, Precision.BF16)
    with pytest.raises(ParityError, match=r"triptych export .* --calibration TEXTS\.txt$"):
        lower_precision(Report(), graphs, bundle, Precision.INT8)


@pytest.mark.slow
def test_damaged_weights_fail_the_gate(twins: Twins, bundle_of: Bundles) -> None:
    twin = twins("bert", EXPORTED)
    bundle, graphs = bundle_of(twin), twin.graphs()
    module = next(iter(graphs.lowerings.values())).module
    next(module.parameters()).data.mul_(1.01)
    with pytest.raises(ParityError, match="ONNX differs from the float64 network"):
        verify(graphs, bundle)


def test_generators_and_precisions_without_a_runtime_are_refused(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.openvino_core.has_bf16", lambda: True)
    monkeypatch.setattr("inference.openvino_core.scales_activations", lambda: True)
    generator, stateless = (twins(name, EXPORTED).graphs() for name in ("gpt2", "clip"))
    for precision in (Precision.BF16, Precision.INT8):
        check_runtime(generator, Runtime.OPENVINO, precision)
    for graphs in (generator, stateless):
        with pytest.raises(SetupError, match="bf16 is not available with --runtime onnxruntime"):
            check_runtime(graphs, Runtime.ONNXRUNTIME, Precision.BF16)
    with pytest.raises(SetupError, match="int8-fast is not available with --runtime openvino"):
        check_runtime(stateless, Runtime.OPENVINO, Precision.INT8_FAST)
    check_runtime(stateless, Runtime.OPENVINO, Precision.INT8)


def test_what_another_processor_would_compute_otherwise_is_refused(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.openvino_core.has_bf16", lambda: False)
    monkeypatch.setattr("inference.openvino_core.scales_activations", lambda: False)
    generator, stateless = (twins(name, EXPORTED).graphs() for name in ("gpt2", "clip"))
    for precision in (Precision.INT8, Precision.INT4):
        with pytest.raises(
            SetupError,
            match=rf"no {precision} here: this processor has no VNNI.*onnxruntime --precision int8",
        ):
            check_runtime(generator, Runtime.OPENVINO, precision)
        check_runtime(generator, Runtime.AUTO, precision)  # which tries both
    for graphs in (generator, stateless):
        with pytest.raises(SetupError, match=r"no bf16 here: .* export with --precision fp32$"):
            check_runtime(graphs, Runtime.OPENVINO, Precision.BF16)
    for graphs, precision in ((stateless, Precision.INT8), (generator, Precision.FP32)):
        check_runtime(graphs, Runtime.OPENVINO, precision)


def test_stems_are_the_convolutions_of_the_pixels_alone() -> None:
    floats, pixels = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8
    nodes = [
        helper.make_node("Cast", ["pixels"], ["cast"], to=floats),
        helper.make_node("Sub", ["cast", "mean"], ["normal"]),
        helper.make_node("Conv", ["normal", "patches"], ["stem"], name="patches"),
        helper.make_node("Conv", ["stem", "further"], ["out"], name="further"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("pixels", pixels, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("out", floats, None)],
        [
            helper.make_tensor("mean", floats, [1], [0.5]),
            helper.make_tensor("patches", floats, [4, 3, 1, 1], [1.0] * 12),
            helper.make_tensor("further", floats, [4, 4, 1, 1], [1.0] * 16),
        ],
    )
    assert stems(graph) == ["patches"]


def test_samples_that_nothing_is_calibrated_on_are_refused(twins: Twins) -> None:
    generator, stateless = (twins(name, EXPORTED).graphs() for name in ("gpt2", "clip"))
    for graphs, runtime, precision, message in (
        (generator, Runtime.ONNXRUNTIME, Precision.INT8, "on what the model itself generates"),
        (stateless, Runtime.ONNXRUNTIME, Precision.INT8, "other graphs need no data"),
        (stateless, Runtime.OPENVINO, Precision.BF16, "other graphs need no data"),
    ):
        with pytest.raises(SetupError, match=message):
            check_runtime(graphs, runtime, precision, is_calibrated=True)
    check_runtime(stateless, Runtime.OPENVINO, Precision.INT8, is_calibrated=True)


def test_lowering_keeps_to_standard_operators_for_openvino_alone(twins: Twins) -> None:
    [lowering, *_] = twins("clip", EXPORTED).graphs().lowerings.values()
    assert lowered_for(lowering, Runtime.ONNXRUNTIME) is lowering
    assert lowered_for(lowering, Runtime.OPENVINO) == replace(lowering, is_fused=False)


@pytest.mark.slow
def test_calibration_sends_no_telemetry(tmp_path: Path) -> None:
    """NNCF reports every quantisation unless told otherwise; a stub then stands in its place."""
    program = (
        "import export.quantization.quantize_static as module; import openvino, sys;"
        "assert sys.modules['openvino_telemetry'] is None;"
        "module.switch_telemetry_off();"
        "import nncf.telemetry.wrapper as wrapper;"
        "assert isinstance(wrapper.telemetry, wrapper.NNCFTelemetryStub)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NNCF", "CI"))}
    environment["HOME"] = str(tmp_path)
    run_program(sys.executable, "-c", program, env=environment)
    assert not list(tmp_path.rglob("*openvino*"))
