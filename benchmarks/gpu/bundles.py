"""Bundles to check: the examples through the gate, and full-size models with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.speed.checkpoints import checkpoint
from examples import CHECKPOINTS
from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from export.pipeline.cli import export
from export.pipeline.manifest import Request, build_manifest
from export.precision import Device, Precision
from export.targets.cuda.lowering import LOW, for_cuda, lower
from export.targets.cuda.substitutes import substitute
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.errors import BundleError

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
EXAMPLES = {
    "example-gpt": (FP32, FP16, BF16),
    "example-es-en": (FP32, FP16, BF16),
    "example-captioner": (FP32, FP16),
    "example-show-attend-tell": (FP32, FP16),
    "example-clip": (FP32, FP16),
    "example-vit": (FP32, FP16),
    "example-bert": (FP32, FP16, BF16),
}
"""One example of each kind, in what CUDA has for it."""


def example(name: str, precision: Precision, folder: Path) -> Bundle:
    """An example as `triptych export --device cuda` makes it; once."""
    repository = folder / precision.value
    try:
        return newest_bundle(repository, name)
    except BundleError:
        export(
            str(CHECKPOINTS / name),
            repository=repository,
            device=Device.CUDA,
            precision=precision,
        )
    return newest_bundle(repository, name)


def full_size(name: str, precision: Precision, folder: Path) -> Bundle:
    """A model of random weights, without the gate, which would decode with PyTorch for minutes.

    Args:
        name: Of `benchmarks.speed.checkpoints`.
    """
    stage = folder / "full-size" / precision.value / name
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "1").mkdir(parents=True)
    model = SourceModel.open(checkpoint(name, folder))
    graphs = model.graphs()
    manifest, _ = build_manifest(Request(name), 1, model, graphs)
    fields = {"device": Device.CUDA.value, "precision": precision.value}
    bundle = Bundle(stage / "1", manifest.model_copy(update=fields))
    for key, lowering in graphs.lowerings.items():
        path = bundle.path(lowering.graph.file)
        to_onnx(for_cuda(key, lowering, precision), path)
        substitute(path)
    return lower(bundle, LOW[precision])[0] if precision in LOW else bundle
