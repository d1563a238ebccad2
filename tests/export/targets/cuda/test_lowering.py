"""Whole bundles for CUDA: what they hold, what the gate finds, and that they decode."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import text_format
from onnx import numpy_helper
from tritonclient.grpc import model_config_pb2

from benchmarks.local_model import onnx_model, torch_model
from benchmarks.panel import Panel, local_responses
from benchmarks.quality import MEASURES
from examples import CHECKPOINTS
from examples.bundles import examples
from export.parity.graph_runs import LazySessions, bundle_path
from export.parity.token_parity import mixed_requests
from export.parity.verify import ParityError, Report
from export.pipeline.cli import export
from export.pipeline.publish import config
from export.precision import Device, Precision
from export.registry import families
from export.report.file_checks import interface_problem
from export.targets.cuda import gate
from export.targets.cuda.gate import BOUNDS, compare_low, kind_of
from export.targets.cuda.kernels import restriction
from export.targets.cuda.lowering import finish_cuda
from inference.bundle.manifest import Bundle, Role
from inference.bundle.reader import newest_bundle
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.errors import SetupError
from tests.export.conftest import Bundles, Twins
from tests.export.targets.cuda.bundles import on_cuda
from tests.export.targets.cuda.conftest import CudaBundles
from tests.export.twin import EXPORTED
from tests.export.twins import lowerable
from tests.inference.engine.host_device import HostDevice

QUICK = {"marian", "gpt2", "clip"}
"""In `make test`; the other architectures in `make test-all`."""


def _families() -> list[object]:
    slow = [pytest.param(name, marks=pytest.mark.full) for name in lowerable() if name not in QUICK]
    return [*sorted(QUICK), *slow]


@pytest.mark.parametrize("name", _families())
def test_architecture_is_exported_in_float16(name: str, cuda_bundles: CudaBundles) -> None:
    bundle, report = cuda_bundles(name, Precision.FP16)
    manifest = bundle.manifest
    assert not {state.dtype for state in manifest.states} & {"float32"}
    for key, graph in manifest.graphs.items():
        session = onnxruntime.InferenceSession(str(bundle_path(bundle, key)))
        assert interface_problem(session, graph) is None
        logits = graph.output(Role.LOGITS)
        assert logits is None or logits.dtype == "float32"
    parity, bounds = report.cuda["parity"], BOUNDS["fp16", kind_of(manifest)]
    assert parity["observations"] > 0
    assert parity["least_cosine"] >= bounds.cosine
    assert parity["worst_difference"] > 0, "nothing was rounded"
    assert (parity["equal_tokens"] is None) == (bounds.tokens is None)
    assert report.cuda["device_nodes"]["float16"] > 0


@pytest.mark.full
@pytest.mark.parametrize("name", lowerable())
def test_architecture_is_exported_in_bfloat16_or_refused(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = bundles(name, EXPORTED)
    heavy = {
        node.op_type
        for key in bundle.manifest.graphs
        for node in onnx.load(bundle_path(bundle, key)).graph.node
        if node.op_type in ("Conv", "LSTM", "RNN")
        or (node.op_type == "GRU" and restriction(node) is None)
    }
    if heavy:
        with pytest.raises(SetupError, match=f"no bfloat16 kernel of .*{min(heavy)}"):
            on_cuda(name, Precision.BF16, twins, bundles, tmp_path)
        return
    _, report = on_cuda(name, Precision.BF16, twins, bundles, tmp_path)
    assert report.cuda["device_nodes"]["bfloat16"] > 0
    assert "emulated" in report.cuda["parity"]["how"]


@pytest.mark.full
@pytest.mark.parametrize("name", families())
def test_architecture_is_exported_in_float32(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle, report = on_cuda(name, Precision.FP32, twins, bundles, tmp_path)
    assert report.cuda["device_nodes"].keys() == {"float32"}
    if "step" in bundle.manifest.graphs:
        step = onnx.load(bundle_path(bundle, "step"), load_external_data=False)
        assert "GroupQueryAttention" not in {node.op_type for node in step.graph.node}
        assert report.tokens["compared"] > 0, "the engine decodes with them"


def test_bundle_in_bfloat16_is_emulated_and_close(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle, report = on_cuda("marian", Precision.BF16, twins, bundles, tmp_path)
    assert {state.dtype for state in bundle.manifest.states} == {"bfloat16"}
    parity = report.cuda["parity"]
    assert parity["how"].endswith("which has no bfloat16 kernels")
    assert 0.98 < parity["least_cosine"] < 1 - 1e-5
    assert not list(tmp_path.rglob("*emulated*"))


def test_images_in_bfloat16_are_refused_with_their_graph(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match="no bfloat16 kernel of Conv at opset 20 in image"):
        on_cuda("clip", Precision.BF16, twins, bundles, tmp_path)


def test_graphs_of_the_cpu_are_refused_in_float32(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    """A planted fault: the fused step graph, which `for_cuda` would have replaced."""
    given = bundles("gpt2", EXPORTED)
    shutil.copytree(given.folder.parent, tmp_path / "stage")
    staged = Bundle(tmp_path / "stage" / given.folder.name, given.manifest)
    with pytest.raises(SetupError, match="nodes of step: GroupQueryAttention-1 of float32"):
        finish_cuda(Report(), twins("gpt2", EXPORTED).graphs(), staged, Precision.FP32)


def test_gate_finds_a_weight_that_changed(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs, original = twins("gpt2", EXPORTED).graphs(), bundles("gpt2", EXPORTED).manifest
    bundle, _ = on_cuda("gpt2", Precision.FP16, twins, bundles, tmp_path)
    path = bundle_path(bundle, "step")
    model = onnx.load(path)
    tensor = max(model.graph.initializer, key=lambda each: int(np.prod(each.dims)))
    flipped = -numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(flipped), tensor.name))
    onnx.save(model, path)
    with pytest.raises(ParityError, match=r"fp16 changes prefill .* cosine .* is required"):
        compare_low(graphs, bundle, original, Precision.FP16)
    lenient = replace(BOUNDS["fp16", "transformer"], cosine=-2.0)
    monkeypatch.setitem(gate.BOUNDS, ("fp16", "transformer"), lenient)
    with pytest.raises(ParityError, match="fp16 generates other tokens than PyTorch"):
        compare_low(graphs, bundle, original, Precision.FP16)
    monkeypatch.setitem(gate.BOUNDS, ("fp16", "transformer"), replace(lenient, tokens=0.0))
    with pytest.raises(ParityError, match="nats a token lower"):
        compare_low(graphs, bundle, original, Precision.FP16)


def test_overflow_fails_the_gate(twins: Twins, bundles: Bundles, tmp_path: Path) -> None:
    """A planted fault: activations beyond float16, which become infinite and then NaN."""
    graphs, original = twins("gpt2", EXPORTED).graphs(), bundles("gpt2", EXPORTED).manifest
    bundle, _ = on_cuda("gpt2", Precision.FP16, twins, bundles, tmp_path)
    path = bundle_path(bundle, "step")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == tensor.FLOAT16 and len(tensor.dims) == 2:
            large = numpy_helper.to_array(tensor) * np.float16(5e3)
            tensor.CopyFrom(numpy_helper.from_array(large, tensor.name))
    onnx.save(model, path)
    with pytest.raises(ParityError, match="cosine nan"):
        compare_low(graphs, bundle, original, Precision.FP16)


def test_published_configuration_names_the_gpu(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    for name in ("gpt2", "clip"):
        manifest = bundles(name, EXPORTED).manifest.model_copy(update={"device": "cuda"})
        for model in set(manifest.parts.values()):
            text = config(manifest, model)
            assert "KIND_GPU" in text
            assert "gpus: 0" in text


def test_sessions_of_float16_graphs_run_alone_and_together(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    """Rows of a batch are close to the rows alone; bit for bit is not promised on a card."""
    bundle, _ = on_cuda("clip", Precision.FP16, twins, bundles, tmp_path)
    run = LazySessions({key: bundle_path(bundle, key) for key in bundle.manifest.graphs})
    size = twins("clip", EXPORTED).prepared.image
    pixels = np.random.default_rng(0).integers(0, 256, (3, *size.shape), dtype=np.uint8)
    (name,) = (port.name for port in bundle.manifest.graphs["image"].inputs)
    together = run("image", {name: pixels})["embedding"]
    for row in range(3):
        alone = run("image", {name: pixels[row : row + 1]})["embedding"]
        assert np.abs(alone[0] - together[row]).max() < 2e-3


RUNNER_QUICK = {"marian"}
"""In `make test`: it has both kinds of attention."""


def _families_runner() -> list[object]:
    slow = [
        pytest.param(name, marks=pytest.mark.full)
        for name in lowerable()
        if name not in RUNNER_QUICK
    ]
    return [*sorted(RUNNER_QUICK), *slow]


@pytest.mark.parametrize("name", _families_runner())
def test_card_gives_the_cpu_tokens(name: str, cuda_bundles: CudaBundles) -> None:
    bundle, _ = cuda_bundles(name, Precision.FP16)
    if bundle.manifest.generator is None:
        pytest.skip("no generator")
    device = HostDevice()
    card, cpu = OrtRunner(bundle, 1, device=device), make_runner(bundle, threads=1)
    for beams in (1, 4):
        requests = mixed_requests(bundle.manifest, beams)
        for capacity in (Capacity(), Capacity(rows=beams)):  # together, and one by one
            given, wanted = (decode(each, requests, capacity) for each in (card, cpu))
            for one, other in zip(given, wanted, strict=True):
                tokens = [[h.token_ids for h in each.hypotheses] for each in (one, other)]
                assert tokens[0] == tokens[1]
    assert device.replayed


COUNT = 200
POINTS = 0.5
MEASURED = {
    "example-bert": ("fill-mask, right word",),
    "example-bert-answer": ("answers, exact match",),
    "example-bert-embed": ("paraphrases",),
    "example-bert-rerank": ("rerank, answer",),
    "example-bert-sentiment": ("sentiment",),
    "example-bert-tags": ("tags",),
    "example-captioner": ("caption, exact match",),
    "example-chat": ("chat, right",),
    "example-clip": ("zero-shot, top-1",),
    "example-es-en": ("translation, BLEU",),
    "example-gpt": ("generation, right",),
    "example-vit": ("image classes, right",),
    "example-vqa": ("questions about pictures, right",),
}
"""Example → how the names of its measures begin."""


def _exported(name: str, repository: Path, precision: Precision) -> tuple[Bundle, dict[str, Any]]:
    export(str(CHECKPOINTS / name), repository=repository, device=Device.CUDA, precision=precision)
    bundle = newest_bundle(repository, name)
    report = json.loads(bundle.path(bundle.manifest.report).read_text(encoding="utf-8"))
    return bundle, report


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", [folder.name for folder in examples()])
def test_example_in_float16_keeps_its_task_quality(name: str, tmp_path: Path) -> None:
    bundle, report = _exported(name, tmp_path, Precision.FP16)
    manifest = bundle.manifest
    assert (manifest.device, manifest.precision) == ("cuda", "fp16")
    for model in set(manifest.parts.values()):
        text = (tmp_path / model / "config.pbtxt").read_text()
        (group,) = text_format.Parse(text, model_config_pb2.ModelConfig()).instance_group
        assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    parity = report["cuda"]["parity"]
    assert parity["least_cosine"] >= BOUNDS["fp16", kind_of(manifest)].cosine
    original = report["cuda"]["original_bytes"]
    assert sum(report["graph_bytes"].values()) < 0.62 * original
    models = (torch_model(CHECKPOINTS / name, bundle), onnx_model(tmp_path, bundle))
    panels = [Panel(local_responses({name: model})) for model in models]
    begins = MEASURED.get(name, ())
    chosen = [measure for measure in MEASURES if measure.name.startswith(begins)] if begins else []
    assert chosen or name not in MEASURED
    for measure in chosen:
        wanted, given = (measure.score(panel, COUNT) for panel in panels)
        assert wanted - given <= POINTS, measure.name


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("example-gpt", Precision.FP32),
        ("example-gpt", Precision.BF16),
        ("example-es-en", Precision.BF16),
        ("example-en-fr", Precision.FP32),
    ],
)
def test_example_in_other_precisions_is_published(
    name: str, precision: Precision, tmp_path: Path
) -> None:
    bundle, report = _exported(name, tmp_path, precision)
    assert bundle.manifest.precision == precision
    assert ("parity" in report["cuda"]) == (precision is not Precision.FP32)
