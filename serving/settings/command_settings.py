"""Settings that several commands have: each field is a flag and an environment variable.

Help and the table in `docs/settings.md` follow from the fields, too. `serve` hands on those of its
two commands as arguments; secrets reach these through the environment alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, HttpUrl, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

PREFIX = "TRIPTYCH_"
"""Of environment variables: `TRIPTYCH_MAX_ROWS` for `--max-rows`."""
Port = Annotated[int, Field(ge=0, le=65535)]
GracePeriod = Annotated[
    float,
    Field(
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Time that requests may take to finish after SIGTERM, in seconds; a second "
        "SIGTERM ends them.",
    ),
]
JsonOutput = Annotated[bool, Field(description="Log lines as JSON.")]


def flag_of(name: str) -> str:
    """The flag of a field: `--max-rows` for `max_rows`."""
    return f"--{name.replace('_', '-')}"


class CommandSettings(BaseSettings):
    """Frozen and validated once. Flags take precedence over the environment.

    A field without a description is no flag.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    without_variable: ClassVar[frozenset[str]] = frozenset()
    """Fields that are flags alone."""

    repository: Path = Field(
        default=Path("model_repository"),
        description="Model repository, as `triptych export` fills it.",
    )
    otlp_endpoint: HttpUrl | None = Field(
        default_factory=lambda: os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"),
        validate_default=True,
        description="Base URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of "
        "each request; also $OTEL_EXPORTER_OTLP_ENDPOINT.",
    )

    @field_validator(
        *("otlp_endpoint", "public_url", "limits_store"), mode="before", check_fields=False
    )
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("host", mode="before", check_fields=False)
    @classmethod
    def _without_brackets(cls, value: object) -> object:
        """`[::1]`, as it is written in a URL, is `::1`."""
        return value[1:-1] if isinstance(value, str) and value[:1] + value[-1:] == "[]" else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments and the environment."""
        return init_settings, _Environment(settings_cls)

    def arguments(self, names: Iterable[str]) -> list[str]:
        """These fields as arguments of a command line; those that are None are left out."""
        values = self.model_dump(mode="json", include=set(names), exclude_none=True)
        switches = {True: "--", False: "--no-"}
        return [
            f"{switches[value]}{flag_of(name)[2:]}"
            if isinstance(value, bool)
            else f"{flag_of(name)}={value}"
            for name, value in values.items()
        ]


class _Environment(EnvSettingsSource):
    """Variables of the fields that have one."""

    def __call__(self) -> dict[str, object]:
        assert issubclass(self.settings_cls, CommandSettings)
        left_out = self.settings_cls.without_variable
        return {name: value for name, value in super().__call__().items() if name not in left_out}


class FrontSettings(CommandSettings):
    """Where the gateway listens, and with how many processes."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that the gateway listens on."
    )
    http_port: Port = Field(default=8080, description="0 takes any free port.")
    grpc_port: Port = Field(default=8081, description="0 takes any free port.")
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that serve behind one address; limits and metrics are of all.",
    )
    glossaries: Path | None = Field(
        default=None,
        description="Folder of the glossaries that clients store; several gateways may share it. "
        "Without one, none are stored.",
    )
