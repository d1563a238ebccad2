"""Weights of 4 bits: what they represent, that OpenVINO keeps them, and that rows stay alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.checkpoint.checkpoint import open_checkpoint
from export.graphs.source_model import SourceModel
from export.parity.graph_runs import bundle_path
from export.parity.verify import ParityError, Report
from export.pipeline.manifest import Request, build_manifest
from export.precision import Precision, Runtime
from export.quantization.lower_precision import lower_precision
from export.quantization.quantize_weights import STEPS, per_group, quantize_weights
from export.registry import architecture
from export.targets.runtime_choice import check_runtime
from inference.bundle.manifest import Bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.openvino.compiled_decoder import QUANTISATION_GROUPS
from inference.engine.runners.openvino.runner import PagedRunner
from inference.errors import SetupError
from inference.openvino_core import openvino_core, scales_activations
from tests.export.conftest import Twins, export_graphs
from tests.export.twin import EXPORTED
from tests.openvino_precisions import require_precision

Floats = NDArray[np.float32]
CHECKPOINT = Path(__file__).parents[3] / "examples" / "checkpoints" / "example-gpt"


def _weight(outputs: int, inputs: int) -> Floats:
    return np.random.default_rng(inputs).normal(size=(outputs, inputs)).astype(np.float32)


def _floats(weight: Floats) -> Floats:
    """What 128 weights a group represent in 4 bits."""
    groups = per_group(weight, 128)
    numbers = groups.numbers.reshape(len(weight), -1, 128).astype(np.float32)
    floats: Floats = (numbers - groups.zeros[..., None]) * groups.scales[..., None]
    return floats.reshape(weight.shape)


def test_weights_are_at_most_half_a_step_away_and_zeros_stay() -> None:
    weight = _weight(24, 384)
    weight[:, ::5] = 0
    weight[3, :128] = 0  # a group of zeros
    weight[4] = np.abs(weight[4]) + 7  # without a zero among them
    groups = per_group(weight, 128)
    away = np.abs(_floats(weight) - weight).reshape(24, 3, 128).max(2)
    assert (away <= groups.scales * (0.5 + 1e-5)).all()
    assert not _floats(weight)[weight == 0].any()
    assert groups.numbers.max() == STEPS


def test_loss_is_relative_to_the_weight() -> None:
    weight = _weight(64, 512)
    difference = np.sqrt(np.square(_floats(weight) - weight).mean() / np.square(weight).mean())
    assert per_group(weight, 128).loss == pytest.approx(difference)
    assert per_group(1000 * weight, 128).loss == pytest.approx(difference, rel=1e-3)
    assert per_group(0 * weight, 128).loss == 0


def _layer(path: Path, weight: Floats, *, is_scores: bool = False) -> None:
    """Y = relu(x · weightᵀ), or the product alone."""
    outputs, inputs = weight.shape
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["R", size])
        for name, size in (("x", inputs), ("y", outputs))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y" if is_scores else "product"])]
    if not is_scores:
        nodes.append(helper.make_node("Relu", ["product"], ["y"]))
    held = [numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")]
    graph = helper.make_graph(nodes, "layer", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)


def _compiled(path: Path, group: int) -> Any:
    options = {
        "INFERENCE_NUM_THREADS": 2,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
    }
    return openvino_core().compile_model(path, "CPU", options)


@pytest.mark.parametrize("group", QUANTISATION_GROUPS)
@pytest.mark.parametrize("inputs", [128, 384, 640, 1024])  # odd and even numbers of groups
def test_openvino_multiplies_them_as_they_are(inputs: int, group: int, tmp_path: Path) -> None:
    path, weight = tmp_path / "layer.onnx", _weight(48, inputs)
    _layer(path, weight)
    assert quantize_weights("step", path, Precision.INT4).four_bits == 1
    rows = np.random.default_rng(0).normal(size=(40, inputs)).astype(np.float32)
    wanted = np.maximum(rows @ _floats(weight).T, 0)
    exact = _compiled(path, group=0)([rows])[0]
    np.testing.assert_allclose(exact, wanted, rtol=1e-4, atol=1e-3)
    run = _compiled(path, group)
    types = {str(op.get_rt_info()["primitiveType"].value) for op in _nodes(run)}
    assert "unknown_u4" in types  # the constant is not expanded
    rounded = run([rows])[0].copy()
    lost = np.linalg.norm(rounded - wanted) / np.linalg.norm(wanted)
    if not scales_activations():  # such generators are refused
        assert lost < 1e-5
        return
    assert 1e-3 < lost < 0.02  # activations are int8
    for count in (1, 2, 5, 12, 17):
        assert np.array_equal(run([rows[:count]])[0], rounded[:count])


def _nodes(compiled: Any) -> list[Any]:
    return list(compiled.get_runtime_model().get_ops())


@pytest.mark.parametrize(
    ("key", "inputs", "change", "is_scores"),
    [
        ("admit", 128, None, False),
        ("step", 192, None, False),
        ("step", 128, "outliers", False),
        ("step", 128, None, True),
    ],
    ids=["encoder", "no whole groups", "outliers", "scores"],
)
def test_layers_that_keep_8_bits(
    key: str, inputs: int, change: str | None, is_scores: bool, tmp_path: Path
) -> None:
    path, weight = tmp_path / "layer.onnx", _weight(48, inputs)
    if change:
        weight[:, 0] *= 8
    _layer(path, weight, is_scores=is_scores)
    done = quantize_weights(key, path, Precision.INT4)
    assert (done.layers, done.four_bits) == (1, 0)


def test_they_are_the_same_beside_the_graph_and_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, found, sizes = _weight(3, 640), [], []
    for limit in (0, 1 << 20):
        path = tmp_path / f"{limit}.onnx"
        monkeypatch.setattr("export.graphs.external_data.EXTERNAL_DATA_BYTES", limit)
        _layer(path, _weight(48, 640))
        quantize_weights("step", path, Precision.INT4)
        found.append(_compiled(path, 128)([rows])[0].copy())
        sizes.append(sum(each.stat().st_size for each in tmp_path.glob(f"{limit}.*")))
    np.testing.assert_array_equal(*found)
    assert 48 * 640 / 2 < sizes[1] < 48 * 640 * 0.6


def test_they_are_for_generators_with_openvino(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.openvino_core.scales_activations", lambda: True)
    generator, stateless = (twins(name, EXPORTED).graphs() for name in ("gpt2", "clip"))
    check_runtime(generator, Runtime.OPENVINO, Precision.INT4)
    check_runtime(generator, Runtime.AUTO, Precision.INT4)
    for graphs, runtime in (
        (generator, Runtime.ONNXRUNTIME),
        (stateless, Runtime.OPENVINO),
        (stateless, Runtime.AUTO),
    ):
        with pytest.raises(SetupError, match="int4 is for generators with --runtime openvino"):
            check_runtime(graphs, runtime, Precision.INT4)


Lower = Callable[[], tuple[Bundle, Report]]


@pytest.fixture(scope="module")
def lower(tmp_path_factory: pytest.TempPathFactory) -> Lower:
    """Lowers the example, a language model of 128 wide layers, to 4 bits in a new folder."""
    require_precision("int4", is_generator=True)
    model = SourceModel(open_checkpoint(str(CHECKPOINT)), architecture("gpt2"))
    graphs = model.graphs()
    manifest, _ = build_manifest(Request("example-gpt", runtime=Runtime.OPENVINO), 1, model, graphs)
    manifest = manifest.model_copy(update={"runtime": "openvino", "precision": "int4"})
    stage = tmp_path_factory.mktemp("float32")
    export_graphs(graphs, manifest, stage)
    step = (stage / manifest.name / "step.onnx").read_bytes()

    def run() -> tuple[Bundle, Report]:
        folder = tmp_path_factory.mktemp("int4") / manifest.name
        folder.mkdir()
        for file, content in {**model.preprocessing.files, "step.onnx": step}.items():
            (folder / file).write_bytes(content)
        bundle, report = Bundle(folder, manifest), Report()
        return replace(
            bundle, manifest=lower_precision(report, graphs, bundle, Precision.INT4)
        ), report

    return run


def test_answers_do_not_depend_on_neighbours_and_the_loss_is_in_the_report(lower: Lower) -> None:
    bundle, report = lower()
    found = report.int8
    assert (found["layers"], found["four_bits"]) == (17, 13)
    assert 0.98 < found["least_cosine"] < found["mean_cosine"] < 1
    assert found["rows_alone"] > 10
    assert found["hypotheses_alone"] == 25
    assert bundle_path(bundle, "step").stat().st_size < 0.25 * found["original_bytes"]
    runner, rules = PagedRunner(bundle, threads=2), bundle.manifest.generation
    random = np.random.default_rng(0)
    update = {"max_new_tokens": 24, "eos_token_ids": ()}
    asked = [
        EngineRequest(
            rules.model_copy(update={**update, "num_beams": beams}),
            prompt_ids=tuple(random.integers(2, 1000, length).tolist()),
        )
        for beams, length in ((1, 3), (4, 17), (1, 40), (1, 9), (2, 33))
    ]
    for request, together in zip(asked, decode(runner, asked), strict=True):
        (alone,) = decode(runner, [request])
        assert [each.token_ids for each in alone.hypotheses] == [
            each.token_ids for each in together.hypotheses
        ]
        assert [each.score for each in alone.hypotheses] == [
            each.score for each in together.hypotheses
        ]
    runner.close()


@pytest.mark.parametrize("fault", ["zeros", "scales"])
def test_gate_refuses_a_fault(fault: str, lower: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(weight: Floats, size: int) -> Any:
        groups = per_group(weight, size)
        if fault == "zeros":
            return replace(groups, zeros=np.full_like(groups.zeros, 8))
        return replace(groups, scales=np.roll(groups.scales, 1, axis=0))

    monkeypatch.setattr("export.quantization.quantize_weights.per_group", wrong)
    with pytest.raises(ParityError, match=r"too much: .* --precision int8 changes less"):
        lower()
