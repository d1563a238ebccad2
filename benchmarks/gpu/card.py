"""The device under test, and the same bundle on the CPU beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

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
from inference.engine.runners.cuda.device import AddressDevice, CudaDevice
from inference.engine.runners.cuda.runtime import CudaRuntime
from inference.engine.runners.cuda.tensors import GRAPH_LIMIT
from inference.engine.runners.ort.runner import OrtRunner
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


Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Card:
    """A card by its number. Tests replace it by host memory."""

    number: int = 0

    @property
    def name(self) -> str:
        """What the driver calls it."""
        runtime = CudaRuntime(self.number)
        try:
            return runtime.name
        finally:
            runtime.close()

    def device(self, *, captures: bool = True) -> AddressDevice:
        """A device of its own stream and sessions."""
        return CudaDevice(self.number, GRAPH_LIMIT if captures else 0)

    def runner(self, bundle: Bundle, *, captures: bool = True) -> OrtRunner:
        """The runner that serves a generator on the card."""
        return OrtRunner(bundle, 1, device=self.device(captures=captures))


def bandwidth(device: AddressDevice, nbytes: int = 1 << 30) -> float:
    """Bytes a second that the device reads, from copies on it, which read and write: best of five.

    Raises:
        MemoryError: the device has less than twice as much memory.
    """
    source, target = (device.allocate(nbytes // 4, "float32") for _ in range(2))
    one = device.entries(source, 0, 1)
    seconds = []
    for _ in range(5):
        device.fetch(one)  # waits for what is queued
        started_s = time.perf_counter()
        device.copy(source, target)
        device.fetch(one)
        seconds.append(time.perf_counter() - started_s)
    return 2 * nbytes / min(seconds)


def differences(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """Largest difference relative to the largest value, and least cosine of rows."""
    a, b = (each.astype(np.float64).reshape(-1, each.shape[-1]) for each in (one, other))
    scale = max(float(np.abs(a).max()), 1e-12)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = np.divide((a * b).sum(axis=1), norms, out=np.ones_like(norms), where=norms != 0)
    return float(np.abs(a - b).max()) / scale, float(cosines.min())


def milliseconds(call: Any, times: int) -> float:
    """Median of a call, after one that warms up."""
    call()
    taken = []
    for _ in range(times):
        started_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started_s)
    return 1000 * median(taken)


@dataclass(frozen=True)
class Outcome:
    """One check of one bundle.

    Attributes:
        is_passed: None for a measurement, which has no bound.
        found: Figures, by name.
    """

    check: str
    model: str
    precision: str
    is_passed: bool | None
    found: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The fields, for a JSON file."""
        return asdict(self)


def not_measured(check: str, model: str, reason: str) -> Outcome:
    """A peer that is missing; it would run in float16."""
    return Outcome(check, model, "fp16", None, {"not measured": reason})


def missing_transformers() -> str | None:
    """Why `transformers` does not run on a card here; None if it does."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        return str(error)
    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA"


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row a check."""
    made = Table("check", "model", "precision", "result", "found", box=None)
    words = {None: "measured", True: "passed", False: "FAILED"}
    for each in outcomes:
        figures = "  ".join(f"{name} {_short(value)}" for name, value in each.found.items())
        made.add_row(each.check, each.model, each.precision, words[each.is_passed], figures)
    return made


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
