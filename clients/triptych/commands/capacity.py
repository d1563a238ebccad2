"""Flags of `serve` and `triton` for how much a generator's engine holds at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from triptych.commands.installed import imported

Said = dict[str, str]
"""What was said, valid, by the names of `FLAGS`."""

FLAGS = {
    "max_rows": "Live rows of a generator: sequences times beams.",
    "max_waiting": "Sequences in a generator that wait for rows, by priority.",
    "max_prefill_tokens": "Prompt tokens read at once while nothing is decoded.",
    "max_prefill_tokens_beside": "The same beside running streams, which wait for it.",
    "state_memory": "All caches of a generator: 2GiB, 512MiB.",
    "prefix_memory": "Stored beginnings of prompts: 256MiB; 0 stores none.",
}
"""By their names in `serving.capacity`, which says what they default to."""


def with_capacity_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command with those flags, which it gets as one argument `capacity`."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        capacity = _validated({name: given.pop(name) for name in FLAGS})
        return command(**given, capacity=capacity)

    signature = inspect.signature(command, eval_str=True)
    own = [each for name, each in signature.parameters.items() if name != "capacity"]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *(_flag(name, text) for name, text in FLAGS.items())]
    )
    run.__annotations__ = {}  # typer would read those of the command, which are text
    return run


def arguments(said: Said) -> list[str]:
    """What was said, as flags for a child."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in said.items()]


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


def _validated(given: dict[str, str | None]) -> Said:
    settings = imported("serving.capacity", "serve-cpu").CapacitySettings
    said: Said = settings.of({k: v for k, v in given.items() if v is not None}).parameters()
    return said
