"""Whole bundles for TensorRT: what they hold, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from export.graphs.to_onnx import to_onnx
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report, verify
from export.pipeline.publish import config
from export.precision import Device, Precision, Runtime, check_device
from export.targets.runtime_rules import check_runtime
from export.targets.tensorrt.lowering import finish_tensorrt, for_tensorrt, planned
from inference.bundle.manifest import Bundle, Limits, Manifest
from inference.errors import SetupError
from tests.export.conftest import Bundles, Twins
from tests.export.twin import EXPORTED


def on_tensorrt(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> tuple[Bundle, Report]:
    """A twin's bundle for TensorRT, through the gate."""
    given, graphs = bundles(name, EXPORTED), twins(name, EXPORTED).graphs()
    fields = {"device": "cuda", "runtime": "tensorrt", "precision": precision.value}
    if given.manifest.limits.max_input_tokens is None:  # a rotary twin's
        fields["limits"] = Limits(max_input_tokens=40)
    manifest = planned(given.manifest.model_copy(update=fields))
    staged = Bundle(folder / "stage" / manifest.name, manifest)
    shutil.copytree(given.folder.parent, folder / "stage")
    for key, lowering in graphs.lowerings.items():
        to_onnx(for_tensorrt(lowering), bundle_path(staged, key))
    report = Report()
    verify(graphs, staged, report)
    finish_tensorrt(report, graphs, staged, precision)
    return staged, report


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("vit", Precision.BF16),  # refused for CUDA, whose Conv has no bfloat16
        pytest.param("clip", Precision.FP16, marks=pytest.mark.full),
        pytest.param("clip", Precision.BF16, marks=pytest.mark.full),
    ],
)
def test_model_is_exported_with_its_types_and_profiles(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle, report = on_tensorrt(name, precision, twins, bundles, tmp_path)
    manifest = bundle.manifest
    low = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    assert report.tensorrt["nodes"][low] > report.tensorrt["nodes"]["float32"] > 0
    assert report.tensorrt["profiles"] == dict.fromkeys(manifest.graphs, 2)
    assert 0 < report.tensorrt["parity"]["worst_difference"] < 0.1
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    for key in manifest.graphs:
        model = onnx.load(bundle_path(bundle, key), load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.full
def test_recurrent_classifier_is_refused_in_float16_and_names_the_operator(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match="TensorRT has no float16 kernel of LSTM at opset 20 in"):
        on_tensorrt("rnn-encoder", Precision.FP16, twins, bundles, tmp_path)


def _parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_configuration_is_read_by_tritons_own_protobuf(bundles: Bundles) -> None:
    fields = {"device": "cuda", "runtime": "tensorrt"}
    manifest = planned(bundles("clip", EXPORTED).manifest.model_copy(update=fields))
    for key, model in manifest.parts.items():
        parsed = _parsed(config(manifest, model))
        assert (parsed.backend, parsed.default_model_filename) == ("tensorrt", "model.plan")
        assert parsed.max_batch_size == 64
        [group] = parsed.instance_group
        assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
        assert (group.count, list(group.gpus)) == (1, [0])
        profiles = manifest.graphs[key].profiles
        assert list(group.profile) == [str(index) for index in range(len(profiles))]
        most = max(shapes[2][0] for each in profiles for shapes in each.shapes.values())
        assert parsed.max_batch_size == most
        assert "intra_op_thread_count" not in parsed.parameters


def test_combinations_that_nothing_serves_are_refused(twins: Twins) -> None:
    check_device(Device.CUDA, Precision.BF16, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--runtime tensorrt is for --device cuda"):
        check_device(Device.CPU, Precision.FP16, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--device cuda has fp32, fp16, bf16"):
        check_device(Device.CUDA, Precision.INT8, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--runtime tensorrt is for stateless models"):
        check_runtime(twins("marian", EXPORTED).graphs(), Runtime.TENSORRT, Precision.FP32)
