"""A worker: one engine in process, which makes the files of shards.

A shard whose worker died twice is made row by row, and a row that was alone in its worker when that
died, twice again, gets an error and no third run. So no row can end the run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from inference.bundle.repository import Repository
from inference.engine.scheduler import Capacity
from inference.errors import Quarantined
from inference.tasks import TASKS
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.length_buckets import LARGE
from serving.batch.job import Job
from serving.batch.parts import Parts
from serving.batch.places import UNFINISHED, Place
from serving.batch.rows import Row, RowReader, RowRequests, sum_usage
from serving.batch.shards import Input, Shard
from serving.local_model import LocalModel, open_local_model
from triptych.errors import TriptychError
from triptych.messages import Item, Request, Usage
from triptych.operation import operation
from triptych.task import IMAGES

log = logging.getLogger(__name__)

IN_PROGRESS = 2
"""Shards of one worker at a time: one is read and tokenised while another is decoded."""
DEATHS = 2
"""Of its worker, before a shard is made row by row; and before a row gets an error."""
_QUARANTINED = "the worker's process ended each time it ran this row: leave it out, or look at it"


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs beside the job; no answer depends on it."""

    repository: Path
    output: str
    threads: int
    capacity: Capacity


@dataclass(frozen=True)
class Report:
    """What was done for one shard."""

    shard: int
    rows: int
    errors: int
    tokens: int
    core_s: float
    """Processor time of the worker since its last report."""


class Worker:
    """Makes files of shards; thread-safe. `IN_PROGRESS` are made at a time, and others written.

    Args:
        job: What is done.
        source: The input.
        settings: Of this run.
        local: The job's model; None: it is opened.

    Raises:
        SetupError: the model cannot be opened.
    """

    def __init__(
        self, job: Job, source: Input, settings: WorkerSettings, local: LocalModel | None = None
    ) -> None:
        self._folder = Place.of(settings.output)
        self._parts = parts_of(job, source, settings.output)
        self._reader = RowReader(source, job.column or "", job.keep, job.field == IMAGES)
        task = TASKS[job.task]
        self._requests = RowRequests(
            local or open_model(job, settings), task, template(job), job.field, job.seed
        )
        self._turns = threading.Semaphore(IN_PROGRESS)
        self._whole = threading.Lock()
        self._counting = threading.Lock()
        self._reported_s = 0.0

    def make(self, shard: Shard) -> Report:
        """Make the file of one shard, unless it is there.

        Raises:
            OSError: the input cannot be read, or the output cannot be written.
        """
        deaths = self._deaths(f"{self._parts.name(shard.number)}.begun")
        if deaths and (counts := self._parts.counts(shard.number)):
            return self._report(shard, counts[1], Usage())  # made before its worker died
        with self._turn(is_alone=deaths >= DEATHS):
            self._mark(f"{self._parts.name(shard.number)}.begun-{deaths}")
            rows = self._reader.rows(shard)
            if deaths >= DEATHS:
                items, usage = self._one_by_one(shard, rows)
            else:
                items, usage = self._requests.answers(rows)
        self._parts.write(shard.number, rows, items)
        return self._report(shard, sum(item.error is not None for item in items), usage)

    def _one_by_one(self, shard: Shard, rows: Sequence[Row]) -> tuple[list[Item], Usage]:
        """The items of rows that may end this process, each beside a mark of its own."""
        items, usages = [], []
        for row in rows:
            name = f"{self._parts.name(shard.number)}.row-{row.file.replace('/', '-')}-{row.number}"
            deaths = self._deaths(name)
            if deaths >= DEATHS:
                row = row._replace(value=Quarantined(_QUARANTINED))
                (item,), usage = self._requests.answers([row])
            else:
                mark = self._mark(f"{name}-{deaths}")
                (item,), usage = self._requests.answers([row])
                mark.delete()
            items.append(item)
            usages.append(usage)
        return items, sum_usage(usages)

    def _deaths(self, name: str) -> int:
        """Marks of this name that no worker has removed."""
        count = 0
        while (self._folder / UNFINISHED / f"{name}-{count}").exists:
            count += 1
        return count

    def _mark(self, name: str) -> Place:
        """An empty file, which is deleted with the others when the run has ended."""
        mark = self._folder / UNFINISHED / name
        self._folder.filesystem.create_dir(mark.parent.path)
        mark.filesystem.open_output_stream(mark.path).close()
        return mark

    @contextlib.contextmanager
    def _turn(self, *, is_alone: bool) -> Iterator[None]:
        """The turn of a shard: beside another one, or alone in this process."""
        with contextlib.ExitStack() as held:
            if is_alone:
                held.enter_context(
                    self._whole
                )  # two shards that take all turns would wait for ever
            for _ in range(IN_PROGRESS if is_alone else 1):
                held.enter_context(self._turns)
            yield

    def _report(self, shard: Shard, errors: int, usage: Usage) -> Report:
        with self._counting:
            now_s = time.process_time()
            core_s, self._reported_s = now_s - self._reported_s, now_s
        tokens = usage.prompt_tokens + usage.completion_tokens
        return Report(shard.number, shard.rows, errors, tokens, core_s)


def open_model(job: Job, settings: WorkerSettings) -> LocalModel:
    """The job's model.

    Raises:
        SetupError: there is none on this machine, or it cannot be opened.
    """
    bundle = Repository(settings.repository).open(job.model, job.version)
    local = open_local_model(
        settings.repository, bundle, threads=settings.threads, capacity=settings.capacity
    )
    if bundle.manifest.runtime != "openvino":  # which compiles for each new shape
        local.model = replace(local.model, sizes=LARGE)
    if job.field != IMAGES:  # beside images texts are labels, alike in all requests
        local.model = replace(local.model, embeddings=EmbeddingCache(0))
    return local


def template(job: Job) -> Request:
    """A request of the job with one row in the place of all.

    Raises:
        InvalidArgument: a field breaks its rule.
    """
    declared = TASKS[job.task].declaration
    row: str | bytes = b"row" if job.field == IMAGES else "row"
    fields = {**job.request, job.field: [row]}
    request: Any = operation(declared, declared.response, **fields).request
    return request  # type: ignore[no-any-return]


def parts_of(job: Job, source: Input, output: str) -> Parts:
    """The files of the job's output."""
    kept = dict.fromkeys(job.keep, pa.string())
    if source.format == "parquet" and job.keep:
        place = source.place(source.files[0])
        with place.filesystem.open_input_file(place.path) as file:
            schema = pq.read_schema(file)
        kept = {name: schema.field(name).type for name in job.keep}
    return Parts(Place.of(output), job.output_format, TASKS[job.task].declaration, kept)


def error_line(error: Exception) -> str:
    """What ended a worker, on one line; its traceback is in the worker's log."""
    log.error("the worker failed", exc_info=error)
    text = " ".join(str(error).split())
    return text if isinstance(error, TriptychError | OSError) else f"{type(error).__name__}: {text}"
