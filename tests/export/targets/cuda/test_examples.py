"""The trained examples for CUDA, exported as `triptych export` does: what float16 costs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.local_model import onnx_model, torch_model
from benchmarks.panel import Panel, local_responses
from benchmarks.quality import MEASURES
from examples import CHECKPOINTS
from examples.bundles import examples
from export.pipeline.cli import export
from export.precision import Device, Precision
from export.targets.cuda.gate import BOUNDS, kind_of
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle

COUNT = 200
POINTS = 0.5
MEASURED = {
    "example-bert": ("fill-mask, right word",),
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
