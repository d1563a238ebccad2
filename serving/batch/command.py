"""`triptych batch TASK`: the command of each task whose request holds texts or images."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from inference.bundle.manifest import Bundle
from inference.bundle.repository import Repository, VersionLock
from inference.stateless.sessions import text_parameters
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import AnyTask
from serving.batch.cluster import cluster, cluster_reports, live_nodes
from serving.batch.job import BatchSettings, Job, Manifest, OutputFormat
from serving.batch.local_workers import local_reports
from serving.batch.places import Place
from serving.batch.run import Progress, begin, finish, only_run
from serving.batch.shards import Input, InputFormat
from serving.batch.worker import WorkerSettings, template
from serving.batch.worker_pool import plan_pool, this_machine, worker_bytes
from serving.commands.flags import with_flags
from serving.gateway.requests.catalog import load_catalog
from serving.load_model import load_model
from serving.model_config import as_loaded, read_config
from serving.settings.capacity_settings import CapacitySettings
from triptych.commands.lazy_commands import single
from triptych.commands.task_flags import (
    OWN,
    check_required,
    own_parameter,
    request_flags,
    values_of,
)
from triptych.errors import InvalidArgument
from triptych.task import FRAME_COUNTS, IMAGES

TEXTS = ("texts", "prompts")
INTERRUPTED = 130
_LATER = """\
\b
triptych batch {task} --input in.parquet --column COLUMN --output out
triptych batch {task} --input folder --output out --output-format parquet

Each row of the input has one row in a file of --output: what identifies it (file, row, hash), the
columns of --keep, and either the fields of the task's answer or an error. The answers are those of
POST /v1/{task}. After an interruption, or a crash, the same command makes what is missing.

Exit code 1: rows have errors, or the run ended early."""


@dataclass(frozen=True)
class OwnFlags:
    """The flags of every command of `triptych batch` that an output depends on."""

    input: Annotated[
        str,
        typer.Option("--input", help="File, or folder of files: Parquet, JSON lines, text "
                     "with a row a line, or images. A path, s3://…, gs://…, or a URI of fsspec."),
    ]  # fmt: skip
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder of the output; a path or a URI, too.")
    ]
    column: Annotated[
        str | None,
        typer.Option("--column", help="Column of Parquet or JSON lines with the texts or images: "
                     "bytes, base64, or paths beside the file."),
    ] = None  # fmt: skip
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Column to copy to the output. Repeatable.")
    ] = None
    rows: Annotated[
        str | None,
        typer.Option("--rows", help="What the rows are, of a task that takes both: texts or "
                     "images. Default: texts, or images from an input of image files."),
    ] = None  # fmt: skip
    input_format: Annotated[
        InputFormat | None,
        typer.Option("--input-format", help="Format of the input, where suffixes do not say it."),
    ] = None
    output_format: Annotated[
        OutputFormat, typer.Option("--output-format", help="Format of the output's files.")
    ] = "jsonl"
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model name; optional where exactly one model fits."),
    ] = None


class BatchCommands(typer.core.TyperGroup):
    """One command for each task, built when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The tasks that take texts or images, one entry a row."""
        return [name for name, task in TASKS.items() if row_fields(task)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a task; None where there is none."""
        task = TASKS.get(cmd_name)
        return single(cmd_name, batch_function(task)) if task and row_fields(task) else None


app = typer.Typer(
    cls=BatchCommands, add_completion=False, rich_markup_mode=None, no_args_is_help=True
)


@app.callback()
def _batch() -> None:
    """Run a task over the rows of files, without a server, on all cores or a Ray cluster.

    \b
    triptych batch translate --input in.txt --output out --source es --target en
    triptych batch embed --input docs.parquet --column text --keep id --output s3://bucket/vectors
    triptych batch caption --input pictures/ --output captions --output-format parquet
    """


def row_fields(task: AnyTask) -> list[str]:
    """Fields of a task's request that may hold one entry a row."""
    return [name for name in task.declaration.item_fields if name in (*TEXTS, IMAGES)]


def batch_function(task: AnyTask) -> Callable[..., int]:
    """The command of a task as a function for typer."""
    declared = task.declaration
    flags = [each for each in request_flags(declared) if each.field not in (IMAGES, FRAME_COUNTS)]
    own = get_type_hints(OwnFlags, include_extras=True)

    def run(settings: BatchSettings, **given: Any) -> int:
        fields = values_of(flags, given)
        check_required(declared, flags, fields)
        flagged = OwnFlags(**{name: given[OWN + name] for name in own})
        return run_batch(task, fields, settings, flagged)

    parameters = [
        own_parameter(name, kind, getattr(OwnFlags, name, inspect.Parameter.empty))
        for name, kind in own.items()
    ]
    run.__signature__ = inspect.Signature([*parameters, *(flag.parameter for flag in flags)])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read those of the function above
    run.__doc__ = f"{declared.summary}\n\n{_LATER.format(task=task.name)}"
    return with_flags(BatchSettings)(run)


def run_batch(task: AnyTask, fields: dict[str, Any], settings: BatchSettings, own: OwnFlags) -> int:
    """Run one command line.

    Returns:
        The exit code.

    Raises:
        TriptychError: nothing was begun, or a worker failed for good.
    """
    source = Input.at(own.input, own.input_format)
    job = Job(
        task=task.name, request=fields, field=_row_field(task, source, own.rows),
        model=own.model or "", version=0, column=own.column, keep=tuple(own.keep or ()),
        output_format=own.output_format, shard_rows=settings.shard_rows,
    )  # fmt: skip
    model, bundle = _served_model(task, job, settings.repository, own)
    job = job.model_copy(update={"model": model.name, "version": bundle.version})
    held = VersionLock()  # until this process ends: an export keeps the version
    held.hold({bundle.folder})
    address = settings.address
    with cluster(address) if address else nullcontext():
        manifest = begin(job, source, own.output, model)
        progress = Progress(manifest.rows)
        try:
            with only_run(own.output):
                _make(manifest, bundle, settings, own, progress)
        except KeyboardInterrupt:
            typer.echo(f"interrupted: {progress.line}; the same command goes on", err=True)
            return INTERRUPTED
    typer.echo(f"{own.output}: {progress.line}")
    return 1 if progress.errors else 0


def _served_model(
    task: AnyTask, job: Job, folder: Path, own: OwnFlags
) -> tuple[LoadedModel, Bundle]:
    """The model that the gateway would choose for a request of the job.

    A run that goes on takes the version that it was begun with, if it is there.

    Raises:
        InvalidArgument: the request needs something of the gateway's.
        ServingError: there is no such model, or it does not serve the request.
    """
    request = template(job).model_copy(update={"model": own.model})
    if task.stored_name(request) is not None:
        raise InvalidArgument("stored glossaries are a gateway's: give --glossary-file")
    repository = Repository(folder)
    model = load_catalog(repository).resolve(task, request)
    begun = Manifest.read(Place.of(own.output))
    if begun is not None and begun.job.model == model.name:
        version = begun.job.version
        if version != model.manifest.version and version in repository.numbers(model.name):
            model = load_model(repository.open(model.name, version))
    return model, repository.open(model.name, model.manifest.version)


def _make(
    manifest: Manifest, bundle: Bundle, settings: BatchSettings, own: OwnFlags, progress: Progress
) -> None:
    """Make what is missing of the output, with as many workers as fit."""
    config = as_loaded(read_config(bundle.folder.parent, bundle.version))
    capacity = settings.capacity(CapacitySettings.of(text_parameters(config)).capacity())
    needed = settings.worker_memory or worker_bytes(bundle, capacity)
    nodes = live_nodes() if settings.address else [this_machine()]
    pool = plan_pool(nodes, needed, settings)
    typer.echo(
        f"{bundle.manifest.name} version {bundle.version}: {manifest.rows} rows, "
        f"{pool.workers} workers of {pool.threads} cores",
        err=True,
    )
    output = own.output if "://" in own.output else Place.of(own.output).path
    worker = WorkerSettings(settings.repository.absolute(), output, pool.threads, capacity)
    make = cluster_reports if settings.address else local_reports
    finish(manifest, output, lambda whole, shards: make(whole, shards, worker, pool), progress)


def _row_field(task: AnyTask, source: Input, kind: str | None) -> str:
    """The request's field that holds the rows.

    Raises:
        InvalidArgument: the task does not take such rows.
    """
    fields = row_fields(task)
    kinds = {IMAGES if name == IMAGES else "texts": name for name in fields}
    if kind is None:
        kind = IMAGES if source.format == "images" or "texts" not in kinds else "texts"
    if kind not in kinds or (source.format == "images") > (kind == IMAGES):
        raise InvalidArgument(
            f"{task.name} takes {' or '.join(kinds)}, the input is {source.format}: see --rows"
        )
    if source.format == "text" and kind == IMAGES:
        raise InvalidArgument("images are given as files, or as a column of Parquet or JSON lines")
    return kinds[kind]
