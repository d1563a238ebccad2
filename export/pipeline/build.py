"""From a checkpoint to a published bundle, each phase named on the console."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from export.architecture import Graphs
from export.checkpoint.checkpoint import refusing_malformed
from export.checkpoint.image_recipe import image_spec
from export.checkpoint.load_network import network_bytes
from export.checkpoint.memory import in_gib, needed_bytes
from export.graphs.external_data import share_weights
from export.graphs.source_model import SourceModel
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report, verify
from export.pipeline.manifest import Request, build_manifest
from export.pipeline.publish import Staging, next_version, publish, staging
from export.pipeline.self_checks import write_self_checks
from export.precision import Device, Precision, Runtime
from export.quantization.calibration_set import CalibrationSet, read_samples
from export.report.file_checks import checksums
from export.targets.instance_config import choose_placement
from export.targets.runtime_choice import (
    check_precision,
    check_runtime,
    choose,
    time_calls,
    why_not_in_blocks,
)
from export.targets.target import CpuTarget, target_of
from export.text_encoders.network import check_segments
from export.text_encoders.sentence_transformers import set_pooling
from export.tokenizer.tokenizer import TokenizerFiles
from export.tokenizer.tokenizer_json import check_tokenizers
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import SetupError
from inference.process_limits import return_memory

console = Console(highlight=False)


@dataclass
class Source:
    """What every candidate of one export is built from.

    Attributes:
        graphs: With the network, until the last candidate is verified.
        files: Of the tokenizer.
        manifest: Of the float32 graphs in ONNX Runtime.
        warnings: Settings of the checkpoint that serving does not support.
    """

    graphs: Graphs
    files: TokenizerFiles
    manifest: Manifest
    warnings: list[str]

    @property
    def candidates(self) -> tuple[Runtime, ...]:
        """Runtimes among which `auto` chooses."""
        if "step" in self.graphs.lowerings and why_not_in_blocks(self.graphs) is not None:
            return (Runtime.ONNXRUNTIME,)
        return (Runtime.ONNXRUNTIME, Runtime.OPENVINO)


@dataclass(frozen=True)
class Built:
    """One staged bundle that has passed the gate."""

    stage: Staging
    bundle: Bundle
    report: Report


def build(model: SourceModel, request: Request, repository: Path) -> tuple[Manifest, Report]:
    """Everything between reading and publishing.

    Raises:
        SetupError: the checkpoint cannot be exported as requested, or fails the gate.
    """
    with refusing_malformed(model.checkpoint.folder):
        source = _read(model, request, repository)
    with ExitStack() as stack:
        stack.callback(gc.unfreeze)
        if request.runtime is Runtime.AUTO and len(source.candidates) > 1:
            built = _fastest(stack, source, request, repository)
        else:
            runtime = request.runtime if request.runtime.is_named else source.candidates[0]
            built = _stage(stack, source, request, runtime, repository, is_last=True)
        _finish(built, source, repository)
    return built.bundle.manifest, built.report


def _read(model: SourceModel, request: Request, repository: Path) -> Source:
    with phase(f"reading {model.checkpoint.location or model.checkpoint.folder}"):
        prepared, network = model.preprocessing, model.network
        notes = [set_pooling(network, model.checkpoint, request.pooling)]
        notes.append(None if request.max_pixels else _pixel_note(model))
        check_tokenizers(prepared.tokenizer, prepared.files)
        check_segments(network, prepared.files)
        graphs = model.graphs(has_attention=request.has_attention)
        check_precision(graphs, request.precision)
        is_calibrated = bool(request.calibration)
        precision = request.precision if request.device is Device.CPU else Precision.FP32
        check_runtime(graphs, request.runtime, precision, is_calibrated=is_calibrated)
    memory = in_gib(needed_bytes(network_bytes(network)))
    console.print(f"  this export needs about {memory} of memory", soft_wrap=True)
    for note in filter(None, notes):
        console.print(f"  {note}", markup=False, soft_wrap=True)
    parts = {part: request.name + suffix for part, suffix in graphs.parts.items()}
    version = next_version(repository, parts)
    manifest, warnings = build_manifest(request, version, model, graphs)
    return Source(graphs, prepared.files, manifest, warnings)


def _pixel_note(model: SourceModel) -> str | None:
    """Says that pictures have fewer pixels than the checkpoint allows; None: they have not."""
    read = model.image and model.image.pixels
    if not read:
        return None
    allowed = image_spec(model.checkpoint).pixels
    if allowed is None or allowed.most == read.most:
        return None
    return (
        f"pictures are scaled down to {read.most} pixels; the checkpoint allows {allowed.most} "
        "(--max-pixels)"
    )


def _fastest(stack: ExitStack, source: Source, request: Request, repository: Path) -> Built:
    """The fastest of the candidates that pass the gate; stateless, with a placement that suits it.

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
            built[runtime] = _stage(stack, source, request, runtime, repository, is_last=is_last)
        except SetupError as error:
            dropped[runtime] = error.message
            console.print(f"  dropped: {error.message}", markup=False, soft_wrap=True)
    if not built:
        reasons = "; ".join(f"{runtime}: {reason}" for runtime, reason in dropped.items())
        raise SetupError(f"no runtime passes the gate: {reasons}")
    with phase("timing the runtimes"):
        choice = choose(time_calls({name: each.bundle for name, each in built.items()}), dropped)
    console.print(choice.table())
    chosen = built[choice.runtime]
    chosen.report.runtime_choice = asdict(choice)
    if "step" in source.graphs.lowerings:
        return chosen  # one engine has all threads
    with phase("timing instances and threads"):
        placed = choose_placement(chosen.bundle)
    console.print(f"  {placed.line()}", soft_wrap=True)
    chosen.report.runtime_choice |= placed.as_json()
    manifest = chosen.bundle.manifest.model_copy(update={"placement": placed.chosen})
    return replace(chosen, bundle=replace(chosen.bundle, manifest=manifest))


def _stage(
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
    target = target_of(runtime, request.device, request.precision)
    manifest = target.complete(source.manifest.model_copy(update={"runtime": runtime.value}))
    folder = stage.part(request.name)
    for file, content in source.files.items():
        (folder / file).write_bytes(content)
    bundle = Bundle(folder, manifest)
    if request.calibration and runtime is Runtime.OPENVINO:
        with phase("reading the samples for calibration"):
            samples = CalibrationSet.of(read_samples(request.calibration), bundle)
        target = CpuTarget(request.precision, runtime, samples)
    for key, lowering in source.graphs.lowerings.items():
        with phase(f"exporting {key} to ONNX"):
            part = stage.part(manifest.parts.get(key, request.name))
            target.write(key, lowering, part / lowering.graph.file)
    with phase("verifying against PyTorch"):
        report = verify(source.graphs, bundle)
    if is_last and not target.compares_with_network:
        source.graphs = source.graphs.without_weights()
    if target.finishing is not None:
        with phase(target.finishing):
            bundle = Bundle(folder, target.finish(report, source.graphs, bundle))
    return Built(stage, bundle, report)


def _finish(built: Built, source: Source, repository: Path) -> None:
    """Writes the report and publishes."""
    bundle, report = built.bundle, built.report
    report.warnings = source.warnings
    if "step" in bundle.manifest.graphs and len(bundle.manifest.graphs) > 1:
        with phase("sharing weights among the graphs"):
            share_weights([bundle_path(bundle, key) for key in bundle.manifest.graphs])
    report.files = checksums(bundle)
    with phase("recording the self-check"):
        write_self_checks(bundle, report, built.stage.part)
    text = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
    bundle.path(bundle.manifest.report).write_text(text + "\n", encoding="utf-8")
    with phase("publishing"):
        publish(built.stage, repository, bundle.manifest)


@contextmanager
def phase(title: str) -> Iterator[None]:
    """A spinner while a phase runs, a tick and its duration when it is done."""
    started_s = time.perf_counter()
    with console.status(f"{title} …"):
        try:
            yield
        except OSError as error:
            error.add_note(title)
            raise
    gc.collect()  # graphs of torch.export refer to weights, and to themselves
    gc.freeze()  # what is left, libraries above all, is not searched again after each phase
    return_memory()
    seconds = time.perf_counter() - started_s
    console.print(f"[green]✓[/green] {title} ({seconds:.1f} s)", soft_wrap=True)
