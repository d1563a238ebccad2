"""The command of a task, built from its declaration when it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from triptych.commands.task_parameters import TaskCommand
from triptych.commands.task_run import OwnFlags, TaskRun
from triptych.task import Task

LINES_NOTE = """\
Line i of --output belongs to line i of --file, blank lines included. After an interruption the
same command continues where the output ends."""


def task_function(task: Task) -> Callable[..., int]:
    """The command of a task as a function for typer."""
    command = TaskCommand(task)

    def run(**given: Any) -> int:
        return TaskRun(command, given, OwnFlags.of(given)).run()

    run.__signature__ = inspect.Signature(command.parameters())  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read those of the function above
    run.__doc__ = _help(command)
    return run


def _help(command: TaskCommand) -> str:
    task = command.task
    parts = [task.summary]
    if task.command.examples:
        # \b keeps the line breaks of the paragraph.
        parts.append("\n".join(("\b", *task.command.examples)))
    details = inspect.cleandoc(task.request.__doc__ or "").split("\n\n")[1:]
    parts += details
    if command.has_lines:
        parts.append(LINES_NOTE)
    return "\n\n".join(parts)
