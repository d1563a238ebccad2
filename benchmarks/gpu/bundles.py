"""Bundles to check: the examples through the gate, and full-size models with random weights."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from benchmarks.encoders import models as encoders
from benchmarks.speed import checkpoints as generators
from examples import CHECKPOINTS
from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from export.pipeline.cli import export
from export.pipeline.manifest import Request, build_manifest
from export.pipeline.publish import publish, staging
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


def checkpoint(name: str, folder: Path) -> Path:
    """A checkpoint of full size with random weights, made once.

    Args:
        name: Of `benchmarks.speed.checkpoints` or `benchmarks.encoders.models`.
    """
    is_encoder = name in encoders.MODELS
    return (encoders if is_encoder else generators).checkpoint(name, folder)


def full_size(name: str, precision: Precision, folder: Path) -> Bundle:
    """A model of random weights, once; without the gate, which decodes with PyTorch for minutes.

    Args:
        name: See `checkpoint`.
    """
    repository = folder / "full-size" / precision.value
    with suppress(BundleError):
        return newest_bundle(repository, name)
    model = SourceModel.open(checkpoint(name, folder))
    graphs = model.graphs()
    manifest, _ = build_manifest(Request(name), 1, model, graphs)
    fields = {"device": Device.CUDA.value, "precision": precision.value}
    with staging(repository) as stage:
        bundle = Bundle(stage.part(name), manifest.model_copy(update=fields))
        for key, lowering in graphs.lowerings.items():
            path = stage.part(manifest.parts.get(key, name)) / lowering.graph.file
            to_onnx(for_cuda(key, lowering, precision), path)
            substitute(path, key)
        for file, content in model.preprocessing.files.items():
            (stage.part(name) / file).write_bytes(content)
        if precision in LOW:
            bundle, _ = lower(bundle, LOW[precision])
        publish(stage, repository, bundle.manifest)
    return newest_bundle(repository, name)
