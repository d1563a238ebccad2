"""Parameters of a task's command: what its declaration becomes on the command line.

Every command of the API has the fields of its request as flags (`task_flags`), `--model`, `--json`,
`--url`, `--api-key` and `--timeout`. A task that streams has `--stream`; one whose input is text
has `--file`, `--output`, `--batch-size` and `--keep-going`, and works line by line with them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from triptych.commands import options
from triptych.commands.task_flags import TaskFlag, field_flag, input_flags, request_flags
from triptych.fields import field_of, fields_of
from triptych.task import IMAGES, Task

OWN = "own_"
"""Prefix of the parameters that set no field, so that a field may have any name."""

_FILE = Annotated[
    str | None, typer.Option("--file", "-f", help="Text file, processed by line; - is stdin.")
]
_BATCH_SIZE = Annotated[
    int, typer.Option("--batch-size", min=1, help="Lines of a file sent in one request.")
]
_KEEP_GOING = Annotated[
    bool, typer.Option("--keep-going", help="Write a blank line for a line that fails.")
]
_STREAM = Annotated[bool, typer.Option("--stream", help="Print text while it is generated.")]
_MODEL = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Model name; optional where exactly one model fits."),
]


@dataclass(frozen=True)
class TaskCommand:
    """The parameters of a task's command."""

    task: Task

    @cached_property
    def has_lines(self) -> bool:
        """Whether there is a mode for files of lines: each entry of the input is a text."""
        return fields_of(self.task.request)[self.inputs[0].field].type is str and (
            self.inputs[0].field != IMAGES
        )

    @cached_property
    def inputs(self) -> list[TaskFlag]:
        """Inputs; one of them, or `--file`, is given."""
        return input_flags(self.task, is_required=self.task.inputs == IMAGES)

    @cached_property
    def fields(self) -> list[TaskFlag]:
        """Other fields of the request."""
        return request_flags(self.task)

    @cached_property
    def rendering(self) -> list[TaskFlag]:
        """Options of the task's render function."""
        render = self.task.command.render
        hints = get_type_hints(render, include_extras=True)
        parameters = list(inspect.signature(render).parameters.values())[2:]
        return [field_flag(field_of(each.name, hints[each.name])) for each in parameters]

    def parameters(self) -> list[inspect.Parameter]:
        """All parameters in the order of `--help`."""
        return [
            *(flag.parameter for flag in self.inputs),
            *self._line_parameters(),
            *(flag.parameter for flag in self.fields),
            *(flag.parameter for flag in self.rendering),
            *([_own("stream", _STREAM, False)] if self.task.streams else []),
            _own("model", _MODEL, None),
            _own("url", options.Url, options.DEFAULT_URL),
            _own("api_key", options.ApiKey, None),
            _own("timeout", options.TimeoutS, options.DEFAULT_TIMEOUT_S),
            _own("as_json", options.AsJson, False),
        ]

    def _line_parameters(self) -> list[inspect.Parameter]:
        lines = [_own("file", _FILE, None)] if self.has_lines else []
        if self.has_lines or self.task.command.formats:
            whole = " or ".join(self.task.command.formats)
            gaps = ", from a file without blank lines" if self.has_lines else ""
            text = "Continued where it ends." if self.has_lines else ""
            text += f" Written whole as {whole}{gaps}." if whole else ""
            info = typer.Option("--output", "-o", dir_okay=False, help=text.strip())
            lines.append(_own("output", Annotated[Path | None, info], None))
        if self.has_lines:
            lines.append(_own("batch_size", _BATCH_SIZE, 16))
            lines.append(_own("keep_going", _KEEP_GOING, False))
        return lines


def _own(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        f"{OWN}{name}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
