"""From a checkpoint to a published bundle, each phase named on the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.load_network import load_network, network_bytes
from export.checkpoint.memory import in_gib, needed_bytes
from export.graphs.to_onnx import to_onnx
from export.parity.verify import Report, verify
from export.pipeline.manifest import Preprocessing, Request, build_manifest, preprocessing
from export.pipeline.publish import Staging, next_version, publish, staging
from export.precision import Precision, Runtime
from export.quantization.calibration_set import CalibrationSet
from export.quantization.int8_parity import lower_precision
from export.quantization.samples import read_samples
from export.report.checksums import checksums
from export.targets.cuda.lowering import finish_cuda, for_cuda
from export.targets.cuda.substitutes import substitute
from export.targets.device import Device
from export.targets.instance_config import choose_placement
from export.targets.runtime_choice import choose, timed
from export.targets.runtime_rules import check_runtime, lowered
from export.targets.tensorrt.lowering import finish_tensorrt, for_tensorrt, planned
from export.text_encoders.image_graphs import with_attention
from export.text_encoders.segments import check_segments
from export.text_encoders.sentence_transformers import set_pooling
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import SetupError

console = Console(highlight=False)


@dataclass
class Source:
    """What every candidate of one export is built from.

    Attributes:
        graphs: With the network, until the last candidate is verified.
        manifest: Of the float32 graphs in ONNX Runtime.
        warnings: Settings of the checkpoint that serving does not support.
    """

    graphs: Graphs
    prepared: Preprocessing
    manifest: Manifest
    warnings: list[str]

    @property
    def candidates(self) -> tuple[Runtime, ...]:
        """Runtimes among which `auto` chooses; generators have their own engine."""
        if "step" in self.graphs.lowerings:
            return (Runtime.ONNXRUNTIME,)
        return (Runtime.ONNXRUNTIME, Runtime.OPENVINO)


@dataclass(frozen=True)
class Built:
    """One staged bundle that has passed the gate."""

    stage: Staging
    bundle: Bundle
    report: Report


def build(
    checkpoint: Checkpoint, declared: Architecture, request: Request, repository: Path
) -> tuple[Manifest, Report]:
    """Everything between reading and publishing.

    Raises:
        SetupError: the checkpoint cannot be exported as requested, or fails the gate.
    """
    source = _read(checkpoint, declared, request, repository)
    with ExitStack() as stack:
        if request.runtime is Runtime.AUTO and len(source.candidates) > 1:
            built = _fastest(stack, source, request, repository)
        else:
            runtime = request.runtime if request.runtime.is_named else source.candidates[0]
            built = _staged(stack, source, request, runtime, repository, is_last=True)
        _finish(built, source, repository)
    return built.bundle.manifest, built.report


def _read(
    checkpoint: Checkpoint, declared: Architecture, request: Request, repository: Path
) -> Source:
    with phase(f"reading {checkpoint.folder}"):
        config = declared.configuration(checkpoint)
        prepared = preprocessing(declared, checkpoint)
        network = load_network(
            partial(declared.build, config),
            checkpoint,
            declared.rename(config),
            request.memory_limit_bytes,
        )
        note = set_pooling(network, checkpoint, request.pooling)
        check_segments(network, prepared.files)
        graphs = declared.graphs(network, prepared.image)
        if request.has_attention:
            graphs = with_attention(declared, network, graphs, prepared.image)
        is_calibrated = bool(request.calibration)
        precision = request.precision if request.device is Device.CPU else Precision.FP32
        check_runtime(graphs, request.runtime, precision, is_calibrated=is_calibrated)
    memory = in_gib(needed_bytes(network_bytes(network)))
    console.print(f"  this export needs about {memory} of memory", soft_wrap=True)
    if note is not None:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    parts = {part: request.name + suffix for part, suffix in graphs.parts.items()}
    version = next_version(repository, parts)
    manifest, warnings = build_manifest(
        request, version, declared, checkpoint, network, graphs, prepared
    )
    return Source(graphs, prepared, manifest, warnings)


def _fastest(stack: ExitStack, source: Source, request: Request, repository: Path) -> Built:
    """The fastest of the candidates that pass the gate, with the placement that suits it.

    Raises:
        SetupError: none does; names the reason of each.
    """
    built: dict[str, Built] = {}
    dropped: dict[str, str] = {}
    for runtime in source.candidates:
        console.print(f"with {runtime}:")
        try:
            check_runtime(source.graphs, runtime, request.precision)
            is_last = runtime is source.candidates[-1]
            built[runtime] = _staged(stack, source, request, runtime, repository, is_last=is_last)
        except SetupError as error:
            dropped[runtime] = error.message
            console.print(f"  dropped: {error.message}", markup=False, soft_wrap=True)
    if not built:
        reasons = "; ".join(f"{runtime}: {reason}" for runtime, reason in dropped.items())
        raise SetupError(f"no runtime passes the gate: {reasons}")
    with phase("timing the runtimes"):
        choice = choose(timed({name: each.bundle for name, each in built.items()}), dropped)
    console.print(choice.table())
    chosen = built[choice.runtime]
    with phase("timing instances and threads"):
        placed = choose_placement(chosen.bundle)
    console.print(f"  {placed.line()}", soft_wrap=True)
    chosen.report.runtime_choice = {**asdict(choice), **placed.as_json()}
    manifest = chosen.bundle.manifest.model_copy(update={"placement": placed.chosen})
    return replace(chosen, bundle=replace(chosen.bundle, manifest=manifest))


def _staged(
    stack: ExitStack,
    source: Source,
    request: Request,
    runtime: Runtime,
    repository: Path,
    *,
    is_last: bool,
) -> Built:
    """The bundle for one runtime, verified and in the requested precision.

    Args:
        is_last: Whether no further candidate needs the network.

    Raises:
        SetupError: it cannot be built, or fails the gate.
    """
    stage = stack.enter_context(staging(repository))
    manifest = source.manifest.model_copy(update={"runtime": runtime.value})
    folder = stage.part(request.name)
    for file, content in source.prepared.files.items():
        (folder / file).write_bytes(content)
    if runtime is Runtime.TENSORRT:
        manifest = planned(manifest)
    bundle = Bundle(folder, manifest)
    samples = None
    if request.calibration and runtime is Runtime.OPENVINO:
        with phase("reading the samples for calibration"):
            samples = CalibrationSet.of(read_samples(request.calibration), bundle)
    for key, lowering in source.graphs.lowerings.items():
        with phase(f"exporting {key} to ONNX"):
            target = stage.part(manifest.parts.get(key, request.name)) / lowering.graph.file
            if runtime is Runtime.TENSORRT:
                to_onnx(for_tensorrt(lowering), target)
            elif request.device is Device.CUDA:
                to_onnx(for_cuda(key, lowering, request.precision), target)
                substitute(target)
            else:
                to_onnx(lowered(lowering, runtime), target)
    with phase("verifying against PyTorch"):
        report = verify(source.graphs, bundle)
    if runtime is Runtime.TENSORRT:
        with phase(f"checking {request.precision} graphs for TensorRT"):
            finish_tensorrt(report, source.graphs, bundle, request.precision)
        return Built(stage, bundle, report)
    if request.device is Device.CUDA:
        with phase(f"checking {request.precision} graphs for CUDA"):
            manifest = finish_cuda(report, source.graphs, bundle, request.precision)
        return Built(stage, Bundle(folder, manifest), report)
    if is_last:  # ONNX is compared with ONNX from here on
        source.graphs = source.graphs.without_weights()
    if request.precision is not Precision.FP32:
        with phase(f"lowering to {request.precision}"):
            manifest = lower_precision(report, source.graphs, bundle, request.precision, samples)
    return Built(stage, Bundle(folder, manifest), report)


def _finish(built: Built, source: Source, repository: Path) -> None:
    """Writes the report and publishes."""
    bundle, report = built.bundle, built.report
    report.warnings = source.warnings
    report.files = checksums(bundle)
    text = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
    bundle.path(bundle.manifest.report).write_text(text + "\n", encoding="utf-8")
    with phase("publishing"):
        publish(built.stage, repository, bundle.manifest)


@contextmanager
def phase(title: str) -> Iterator[None]:
    """A spinner while a phase runs, a tick and its duration when it is done."""
    started_s = time.perf_counter()
    with console.status(f"{title} …"):
        yield
    seconds = time.perf_counter() - started_s
    console.print(f"[green]✓[/green] {title} ({seconds:.1f} s)", soft_wrap=True)
