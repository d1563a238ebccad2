"""One run over an input: what is missing of its output, made by workers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import fs
from rich.console import Console

from inference.errors import ServingError
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from serving.batch.job import Job, Manifest
from serving.batch.parts import check_kept
from serving.batch.places import UNFINISHED, Place
from serving.batch.rows import RowReader
from serving.batch.shards import Input, Shard
from serving.batch.worker import Report, parts_of, template
from triptych.errors import InvalidArgument
from triptych.task import IMAGES

SUMMARY = "summary.json"
_EVERY_S = 10.0
_EVERY_S_ON_TERMINAL = 0.5


@dataclass
class Progress:
    """Counts the reports of a run, and shows them.

    Attributes:
        total: Rows of the input.
        rows: Of which an answer or an error is written, those of earlier runs included.
        errors: Rows with an error among them.
        clock: Monotonic time in seconds.
    """

    total: int
    rows: int = 0
    errors: int = 0
    clock: Callable[[], float] = time.monotonic
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    _own: int = 0
    _tokens: int = 0
    _core_s: float = 0.0
    _shown_s: float = 0.0

    _started_s: float = 0.0

    def begin(self) -> None:
        """Measure from now on."""
        self._started_s = self._shown_s = self.clock()

    def add(self, report: Report) -> None:
        """Count a shard, and show the counts where it is time to."""
        self.rows += report.rows
        self.errors += report.errors
        self._own += report.rows
        self._tokens += report.tokens
        self._core_s += report.core_s
        is_terminal = self.console.is_terminal
        if self.clock() - self._shown_s >= (_EVERY_S_ON_TERMINAL if is_terminal else _EVERY_S):
            self._shown_s = self.clock()
            self.console.print(self.line, end="\r" if is_terminal else "\n", soft_wrap=True)

    @property
    def line(self) -> str:
        """The counts on a line for the console."""
        share = 100 * self.rows / max(1, self.total)
        found = self.summary()
        return (
            f"{self.rows} of {self.total} rows ({share:.0f} %), {self.errors} errors; "
            f"{found['rows_per_s']} rows/s, {found['tokens_per_s']} tokens/s, "
            f"{found['core_s_per_1000_rows']} core-seconds per 1000 rows"
        )

    def summary(self) -> dict[str, float]:
        """The counts, and the cost of what this run has done."""
        seconds = max(1e-9, self.clock() - self._started_s)
        return {
            "rows": self.rows,
            "total_rows": self.total,
            "errors": self.errors,
            "rows_of_this_run": self._own,
            "seconds": round(seconds, 3),
            "rows_per_s": round(self._own / seconds, 2),
            "tokens_per_s": round(self._tokens / seconds, 1),
            "core_s_per_1000_rows": round(1000 * self._core_s / max(1, self._own), 2),
        }

    def write(self, folder: Place) -> None:
        """Write `summary.json` of an output."""
        with folder.replacing(SUMMARY) as file:
            file.write(json.dumps(self.summary(), indent=1).encode() + b"\n")


_LOCK = ".lock"
_LOOKED_AT_BYTES = 1 << 20
"""Of JSON lines, for the names of its columns."""

MakeShards = Callable[[Manifest, list[Shard]], Iterable[Report]]
"""Makes the files of shards: the report of each, in any order."""


def begin(job: Job, source: Input, output: str, model: LoadedModel) -> Manifest:
    """The manifest of an output: its own, if the same run began it, else a new one.

    Raises:
        InvalidArgument: a field, a column or the input is wrong, or the output is of another run.
        ServingError: the model refuses the request, whatever its rows are.
    """
    folder = Place.of(output)
    check_kept(TASKS[job.task].declaration, job.keep)
    found = Manifest.read(folder)
    if found is not None:
        found.check_unchanged(job, source)
        return found
    manifest = Manifest(job=job, source=source, shards=source.shards(job.shard_rows))
    if not manifest.shards:
        raise InvalidArgument(f"--input: {source.uri} has no rows")
    _check_columns(job, source)
    _check_request(manifest, model)
    folder.filesystem.create_dir(folder.path)
    manifest.write(folder)
    return manifest


def finish(manifest: Manifest, output: str, make: MakeShards, progress: Progress) -> None:
    """Make what is missing of an output, and write its summary.

    Whatever ends this early, the files that are there are whole, and another run makes the others.

    Raises:
        TriptychError: a worker failed for good.
    """
    folder = Place.of(output)
    parts = parts_of(manifest.job, manifest.source, output)
    (folder / UNFINISHED).delete()
    missing = []
    for shard in manifest.shards:
        counts = parts.counts(shard.number)
        if counts is None or counts[0] != shard.rows:
            (folder / parts.name(shard.number)).delete()
            missing.append(shard)
        else:
            progress.rows += shard.rows
            progress.errors += counts[1]
    progress.begin()
    try:
        for report in make(manifest, missing) if missing else ():
            progress.add(report)
    finally:
        progress.write(folder)
    (folder / UNFINISHED).delete()


@contextlib.contextmanager
def only_run(output: str) -> Iterator[None]:
    """The only run of an output on this machine until the block ends.

    Raises:
        InvalidArgument: there is another one.
    """
    place = Place.of(output)
    if not isinstance(place.filesystem, fs.LocalFileSystem) or not place.exists:
        yield
        return
    with (Path(place.path) / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(f"--output: another run writes {output}: wait for it") from None
        yield


def _check_columns(job: Job, source: Input) -> None:
    """Raises InvalidArgument for columns that the input lacks, or has no place for."""
    wanted = [*filter(None, (job.column,)), *job.keep]
    if source.format in ("text", "images"):
        if wanted:
            raise InvalidArgument(f"--column, --keep: an input of {source.format} has no columns")
        return
    if job.column is None:
        raise InvalidArgument("--column: name the one with the rows")
    known = _columns(source)
    for name in wanted:
        if name not in known:
            raise InvalidArgument(
                f"the input has no column {name}; it has: {', '.join(sorted(known)) or 'none'}"
            )


def _columns(source: Input) -> set[str]:
    """Of the first file: of Parquet by its schema, of JSON lines those of its first object."""
    place = source.place(source.files[0])
    if source.format == "parquet":
        with place.filesystem.open_input_file(place.path) as file:
            return set(pq.read_schema(file).names)
    with place.filesystem.open_input_stream(place.path) as file:
        lines = file.read(_LOOKED_AT_BYTES).split(b"\n")
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                return set(entry)
    return set()


def _check_request(manifest: Manifest, model: LoadedModel) -> None:
    """Raises ServingError where the model refuses the request for another reason than its row."""
    job, task = manifest.job, TASKS[manifest.job.task]
    reader = RowReader(manifest.source, job.column or "", (), job.field == IMAGES)
    rows = reader.rows(manifest.shards[0])
    first = next((row.value for row in rows if not isinstance(row.value, ServingError)), None)
    if first is None:
        return
    value = first[0] if isinstance(first, tuple) else first
    is_image = job.field == IMAGES
    message = template(job)
    if not is_image:
        message = message.model_copy(update={job.field: [value]})
    try:
        task.prepare(message, [value] if is_image else (), model)
    except ServingError as error:
        if not (error.field or "").startswith(job.field):
            raise
