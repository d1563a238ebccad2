"""What a run does and where, as flags and in its output's manifest."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, HttpUrl, ValidationError
from pydantic_settings import SettingsConfigDict

from serving.batch.places import Place
from serving.batch.shards import Input, Shard
from serving.settings.capacity_settings import CapacitySettings
from serving.settings.command_settings import CommandSettings
from triptych.errors import InvalidArgument, one_line

MANIFEST = "manifest.json"
OutputFormat = Literal["jsonl", "parquet"]


class Job(BaseModel):
    """Everything that an answer depends on. Equal jobs give equal outputs.

    Attributes:
        task: Its name.
        request: Fields of the task's request, without the rows.
        field: The request's field that holds the rows.
        model: The bundle's name.
        version: Its number.
        column: Of the input, with the rows; None for text and images.
        keep: Columns that are copied to the output.
        output_format: Of the output's files.
        shard_rows: Rows of a shard, at most.
        seed: What samples are drawn from, unless the request has a seed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    request: dict[str, Any]
    field: str
    model: str
    version: int
    column: str | None
    keep: tuple[str, ...] = ()
    output_format: OutputFormat
    shard_rows: int
    seed: int = Field(default_factory=lambda: secrets.randbits(62))

    def differences(self, other: Job) -> Iterator[str]:
        """What another job has otherwise, in words; seeds that were not given may differ."""
        mine, theirs = self._settings(), other._settings()
        for name in dict.fromkeys((*mine, *theirs)):
            if mine.get(name) != theirs.get(name):
                yield f"{name} {_quote(mine.get(name))}, now {_quote(theirs.get(name))}"

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.model_dump(mode="json", exclude={"seed"})
        request: dict[str, Any] = settings.pop("request")
        return settings | request


class Manifest(BaseModel):
    """`manifest.json` of an output: the job, its input, and its division into shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    job: Job
    source: Input
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        """Number of rows of the whole input."""
        return sum(shard.rows for shard in self.shards)

    def write(self, folder: Place) -> None:
        """Write it as the output's manifest."""
        with folder.replacing(MANIFEST) as file:
            file.write(self.model_dump_json(exclude_defaults=True).encode())

    @classmethod
    def read(cls, folder: Place) -> Manifest | None:
        """That of an output; None where there is none.

        Raises:
            InvalidArgument: the folder holds something else, or a manifest of another version.
        """
        place = folder / MANIFEST
        if not place.exists:
            if folder.exists and (not folder.info.type.value == 3 or folder.files()):
                raise InvalidArgument(
                    f"--output: {folder.path} exists and is no output of triptych batch: "
                    "give another"
                )
            return None
        try:
            return cls.model_validate(json.loads(place.read()))
        except ValidationError as error:
            raise InvalidArgument(
                f"--output: {place.path} is of another version: {one_line(error)}"
            ) from None

    def check_unchanged(self, job: Job, source: Input) -> None:
        """Check that a run with this job and this input may go on with the output.

        Raises:
            InvalidArgument: they differ; the message names what does.
        """
        if differences := ", ".join(self.job.differences(job)):
            raise InvalidArgument(
                f"--output was begun with other settings ({differences}): give those, or another "
                "--output"
            )
        before = {file.path: file for file in self.source.files}
        now = {file.path: file for file in source.files}
        changed = sorted(path for path in {*before, *now} if before.get(path) != now.get(path))
        if changed:
            raise InvalidArgument(
                f"--input has changed since the output was begun ({changed[0]} and "
                f"{len(changed) - 1} more): restore it, or give another --output"
            )


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


class BatchSettings(CapacitySettings, CommandSettings):
    """What a run of `triptych batch` is started with."""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    without_variable: ClassVar[frozenset[str]] = frozenset(
        ("workers", "threads", "worker_memory", "shard_rows", "address")
    )

    otlp_endpoint: HttpUrl | None = None  # no flag: there are no requests to trace
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes with an engine each. Default: as many as the cores and the memory "
        "of all nodes hold.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Cores of a worker. Default: 1, or more where memory holds fewer workers than "
        "there are cores.",
    )
    worker_memory: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Memory that a worker may need: 3GiB. Default: twice the bundle's files, its "
        "engine's state and prefix memory, and 512 MiB.",
    )
    shard_rows: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Rows of one file of the output at most; the last files have fewer.",
    )
    address: str | None = Field(
        default=None,
        min_length=1,
        description="A running Ray cluster: HOST:PORT, or auto for that of this machine. Default: "
        "processes of this machine, without Ray.",
    )
