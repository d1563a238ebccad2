"""`triptych export SOURCE`: checkpoint → verified bundle in the model repository."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from export.architecture import Architecture
from export.calibration_set import CalibrationSet
from export.checkpoint import Checkpoint, load, open_checkpoint
from export.encoding.pooling import PoolingMode
from export.image_graphs import with_attention
from export.int8_parity import lower_precision
from export.manifest import (
    Request,
    build_manifest,
    bundle_name,
    content_hash,
    preprocessing,
    tasks,
)
from export.openvino_runtime import check_runtime, lowered
from export.publish import next_version, publish, published, staging
from export.quantize import Precision, Runtime
from export.registry import architecture
from export.registry import tasks as registered_tasks
from export.report.checksums import checksums
from export.samples import read_samples
from export.sentence_transformers import set_pooling
from export.to_onnx import to_onnx
from export.verify import Report, summary, verify
from serving.bundle import Bundle, Manifest, newest_bundle, versions
from serving.errors import BundleError, SetupError

console = Console(highlight=False)


def export(
    source: Annotated[str, typer.Argument(help="Folder in Hugging Face format, or a hub name.")],
    name: Annotated[str | None, typer.Option(help="Bundle name; default: the folder's.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help=f"Default task, if the model has several: {', '.join(registered_tasks())}."
        ),
    ] = None,
    repository: Annotated[Path, typer.Option(help="Model repository.")] = Path("model_repository"),
    default: Annotated[
        bool | None,
        typer.Option(
            "--default/--no-default",
            help="Whether requests that name no model go to this one; "
            "if not given, as in the published version.",
        ),
    ] = None,
    precision: Annotated[
        Precision,
        typer.Option(
            help="int8: smaller and faster; int8-fast: faster still, not batch-invariant; "
            "bf16: with --runtime openvino."
        ),
    ] = Precision.FP32,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Also a part that returns where an image model attends: attention roll-out.",
        ),
    ] = False,
    runtime: Annotated[
        Runtime,
        typer.Option(help="What computes a stateless model; openvino: its int8 has fixed scales."),
    ] = Runtime.ONNXRUNTIME,
    pooling: Annotated[
        PoolingMode | None,
        typer.Option(
            help="How an encoder's vectors become one, where its folder does not say; default mean."
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            help="Samples of your own for the fixed scales of --runtime openvino --precision int8: "
            "a file with one text a line (a tab between the two of a pair), .jsonl, or a folder of "
            "images. May be given twice."
        ),
    ] = None,
) -> None:
    """Exports a checkpoint as a verified bundle that Triton can load."""
    try:
        checkpoint = open_checkpoint(source)
        bundle = bundle_name(name, checkpoint)
        is_default = is_published_default(repository, bundle) if default is None else default
        request = Request(
            name=bundle,
            task=task,
            is_default=is_default,
            precision=precision,
            has_attention=attention,
            runtime=runtime,
            pooling=pooling,
            calibration=tuple(calibration or ()),
        )
        _export(checkpoint, request, repository)
    except (SetupError, OSError) as error:  # a full disk, a folder that may not be written
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def is_published_default(repository: Path, name: str) -> bool:
    """Whether the newest published version of a bundle is marked default."""
    if not versions(repository / name):
        return False
    try:
        return newest_bundle(repository, name).manifest.default
    except BundleError:  # no version is complete
        return False


def _export(checkpoint: Checkpoint, request: Request, repository: Path) -> None:
    declared = architecture(checkpoint.config.get("model_type"))
    tasks(declared, declared.read_config(checkpoint.config), request.task)
    version = published(repository, request.name, content_hash(checkpoint, request))
    if version is not None:
        console.print(f"{request.name} version {version} is up to date")
        return
    manifest, report = _build(checkpoint, declared, request, repository)
    for line in report.warnings:
        console.print(f"  warning: {line}", markup=False, soft_wrap=True)
    for line in summary(report):
        console.print(f"  {line}", soft_wrap=True)
    console.print(
        f"{manifest.name} version {manifest.version} is published in {repository}", soft_wrap=True
    )


def _build(
    checkpoint: Checkpoint, declared: Architecture, request: Request, repository: Path
) -> tuple[Manifest, Report]:
    """Everything between reading and publishing, each phase named on the console."""
    with phase(f"reading {checkpoint.folder}"):
        config = declared.read_config(checkpoint.config)
        prepared = preprocessing(declared, checkpoint)
        network = declared.build(config).eval()
        load(network, checkpoint, declared.rename(config))
        note = set_pooling(network, checkpoint, request.pooling)
        graphs = declared.graphs(network, prepared.image)
        if request.has_attention:
            graphs = with_attention(declared, network, graphs, prepared.image)
        is_calibrated = bool(request.calibration)
        check_runtime(graphs, request.runtime, request.precision, is_calibrated=is_calibrated)
    if note is not None:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    parts = {part: request.name + suffix for part, suffix in graphs.parts.items()}
    version = next_version(repository, parts)
    manifest, warnings = build_manifest(
        request, version, declared, checkpoint, network, graphs, prepared
    )
    with staging(repository) as stage:
        folder = stage.part(request.name)
        for file, content in prepared.files.items():
            (folder / file).write_bytes(content)
        staged = Bundle(folder, manifest)
        samples = None
        if request.calibration:
            with phase("reading the samples for calibration"):
                samples = CalibrationSet.of(read_samples(request.calibration), staged)
        for key, lowering in graphs.lowerings.items():
            with phase(f"exporting {key} to ONNX"):
                target = stage.part(parts.get(key, request.name)) / lowering.graph.file
                to_onnx(lowered(lowering, request.runtime), target)
        with phase("verifying against PyTorch"):
            report = verify(graphs, staged)
        graphs = graphs.without_weights()  # ONNX is compared with ONNX from here on
        del network
        if request.precision is not Precision.FP32:
            with phase(f"lowering to {request.precision}"):
                manifest = lower_precision(report, graphs, staged, request.precision, samples)
        report.warnings = warnings
        report.files = checksums(Bundle(folder, manifest))
        text = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
        (folder / manifest.report).write_text(text + "\n", encoding="utf-8")
        with phase("publishing"):
            publish(stage, repository, manifest)
    return manifest, report


@contextmanager
def phase(title: str) -> Iterator[None]:
    """A spinner while a phase runs, a tick and its duration when it is done."""
    started_s = time.perf_counter()
    with console.status(f"{title} …"):
        yield
    seconds = time.perf_counter() - started_s
    console.print(f"[green]✓[/green] {title} ({seconds:.1f} s)", soft_wrap=True)


if __name__ == "__main__":
    typer.run(export)
