"""Flags of `triptych batch` that change no answer: where it runs, and what its engines hold."""

from __future__ import annotations

from typing import ClassVar

from pydantic import ByteSize, Field, HttpUrl
from pydantic_settings import SettingsConfigDict

from serving.settings.capacity import CapacitySettings
from serving.settings.command_settings import CommandSettings


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
