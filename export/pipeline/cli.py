"""`triptych export SOURCE`: checkpoint → verified bundle in the model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint, refusing_malformed
from export.checkpoint.load_network import limit_threads
from export.checkpoint.memory import limit_bytes
from export.graphs.source_model import SourceModel
from export.pipeline.build import build, console
from export.pipeline.manifest import Request, bundle_name, content_hash, tasks
from export.pipeline.publish import find_published
from export.precision import Device, Precision, Runtime, check_device
from export.report.findings import summary
from export.text_encoders.pooling import PoolingMode
from inference.bundle.reader import newest_bundle, versions
from inference.errors import BundleError, SetupError
from inference.tasks import TASKS
from triptych.system_errors import explain

_TASKS = [name for name in TASKS if name != "score"]  # which no architecture declares


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder in Hugging Face format, of timm or of a translator's library, a package "
            "of Argos Translate, or a hub name."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Bundle name; default: the folder's.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help=f"Default task, if the model has several: {', '.join(_TASKS)}."),
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
            "int4: weights of 4 bits, for generators with --runtime openvino; bf16: with "
            "--runtime openvino or --device cuda; fp16: with --device cuda."
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
        typer.Option(
            help="What computes the model; openvino: on the CPU, its int8 has fixed scales in "
            "stateless models and needs no data in generators; auto: the faster of those that "
            "pass the gate, timed on this machine; tensorrt: stateless, with --device cuda, "
            "`triptych plan` builds its plans where they are served."
        ),
    ] = Runtime.ONNXRUNTIME,
    device: Annotated[
        Device,
        typer.Option(
            help="What the graphs are for; cuda: fp32, fp16 or bf16, and a CUDA kernel for every "
            "node. Exporting needs no GPU."
        ),
    ] = Device.CPU,
    pooling: Annotated[
        PoolingMode | None,
        typer.Option(
            help="How an encoder's vectors become one, where its folder does not say; default mean."
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            help="Samples of your own for the fixed scales of OpenVINO's int8: a file with one "
            "text a line (a tab between the two of a pair), .jsonl, or a folder of images. May be "
            "given twice."
        ),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GiB of memory that the export may need, by its estimate; default: nine tenths "
            "of what is available.",
        ),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Pixels that pictures of a model are scaled down to, where they keep their own "
            "size (Qwen2-VL); default: what the checkpoint allows, at most 1003520 (1280 tokens).",
        ),
    ] = None,
) -> None:
    """Exports a checkpoint as a verified bundle that Triton can load."""
    limit_threads()
    try:
        check_device(device, precision, runtime)
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
            device=device,
            pooling=pooling,
            calibration=tuple(calibration or ()),
            memory_limit_bytes=limit_bytes(memory_limit),
            max_pixels=max_pixels,
        )
        _export(checkpoint, request, repository)
    except (SetupError, OSError) as error:  # a full disk, a folder that may not be written
        text = f"error: {explain(error, repository)}"
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
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
    model = SourceModel(
        checkpoint,
        memory_limit_bytes=request.memory_limit_bytes,
        max_pixels=request.max_pixels,
        scratch=next(parent for parent in repository.resolve().parents if parent.is_dir()),
    )
    with refusing_malformed(checkpoint.folder):
        tasks(model.architecture, model.configuration, request.task)
    version = find_published(repository, request.name, content_hash(checkpoint, request))
    if version is not None:
        console.print(f"{request.name} version {version} is up to date")
        return
    manifest, report = build(model, request, repository)
    for line in report.warnings:
        console.print(f"  warning: {line}", markup=False, soft_wrap=True)
    for line in summary(report):
        console.print(f"  {line}", soft_wrap=True)
    console.print(
        f"{manifest.name} version {manifest.version} is published in {repository}", soft_wrap=True
    )


if __name__ == "__main__":
    typer.run(export)
