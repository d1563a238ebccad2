"""Flags of `serve` and `triton` for the capacity of each generator's engine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from triptych.commands.lazy_import import imported

CapacityFlags = dict[str, str]
"""Validated values by name, as in `FLAGS`; flags that were not given are missing."""

FLAGS = {
    "max_rows": "Concurrent rows of a generator: sequences times beams.",
    "max_waiting": "Sequences queued in a generator's engine, by priority.",
    "max_prefill_tokens": "Prompt tokens per step while nothing is decoded.",
    "max_prefill_tokens_beside": "The same while sequences are decoded, which wait for them.",
    "state_memory": "Memory for all caches of a generator: 2GiB, 512MiB.",
    "prefix_memory": "Prefix cache: 256MiB; 0 disables it.",
}
"""By field of `serving.settings.capacity.CapacitySettings`, which has the defaults."""


def with_capacity_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command with these flags added; it receives them as one argument `capacity`."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        capacity = _validated({name: given.pop(name) for name in FLAGS})
        return command(**given, capacity=capacity)

    signature = inspect.signature(command, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "capacity"]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *(_flag(name, text) for name, text in FLAGS.items())]
    )
    run.__annotations__ = {}  # typer would read those of the command, which are strings
    return run


def arguments(capacity: CapacityFlags) -> list[str]:
    """The flags as arguments for a child process."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in capacity.items()]


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


def _validated(given: dict[str, str | None]) -> CapacityFlags:
    settings = imported("serving.settings.capacity", "serve-cpu").CapacitySettings
    flags = {name: value for name, value in given.items() if value is not None}
    capacity: CapacityFlags = settings.of(flags).parameters()
    return capacity
