"""Flags that `serve` and `triton` share; each field of `CapacitySettings` is one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from serving.settings.capacity import CapacitySettings

Device = Annotated[
    str | None,
    typer.Option(
        envvar="TRIPTYCH_DEVICE",
        metavar="cpu|cuda|cuda:N",
        help="Device of the bundles that are served; cuda:N is one card.  [that of each bundle]",
        show_default=False,
    ),
]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar=["TRIPTYCH_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        metavar="URL",
        help="OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request.",
        show_default=False,
    ),
]


def with_capacity_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command with a flag for each field of `CapacitySettings`; it receives `capacity`."""
    fields = CapacitySettings.model_fields

    @functools.wraps(command)
    def run(**given: Any) -> int:
        flags = {name: value for name in fields if (value := given.pop(name)) is not None}
        return command(**given, capacity=CapacitySettings.of(flags))

    signature = inspect.signature(command, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "capacity"]
    flags = [_flag(name, str(field.description)) for name, field in fields.items()]
    run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read those of the command, which are strings
    return run


def _flag(name: str, text: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar="VALUE",
        envvar=f"TRIPTYCH_{name.upper()}",
        help=text,
        show_default=False,
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
