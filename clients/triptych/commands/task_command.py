"""The command of a task, built from its declaration when it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import typer

from triptych.commands.lines import LineProcessor, process_file
from triptych.commands.options import AnyClient, connect
from triptych.commands.printing import CUT, print_items, print_json, print_stream, report_truncated
from triptych.commands.task_flags import OWN, TaskCommand, TaskFlag, check_required, values_of
from triptych.errors import TriptychError
from triptych.messages import Item, Response
from triptych.operation import operation, stream_operation
from triptych.task import FRAME_COUNTS, IMAGES, Format, Task


@dataclass(frozen=True)
class OwnFlags:
    """Values of the flags that set no field of the request."""

    url: str
    timeout: float
    api_key: str | None
    as_json: bool
    model: str | None
    stream: bool = False
    file: str | None = None
    output: Path | None = None
    batch_size: int = 16
    keep_going: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """The flags among all values of a command."""
        names = (each.name for each in fields(cls))
        return cls(**{name: given[OWN + name] for name in names if OWN + name in given})


@dataclass(frozen=True)
class OutputFile:
    """A file that holds all results in a format of the task, e.g. `.npy`."""

    path: Path
    encode: Format

    def write(self, items: Sequence[Item], images: Sequence[bytes | Path] = ()) -> None:
        """Replace the file in one step, so that it is never half written.

        Raises:
            TriptychError: An item failed; nothing is written.
        """
        for item in items:
            if item.error is not None:
                raise TriptychError(f"item {item.index + 1}: {item.error.message}")
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.write_bytes(self.encode(items, images))
        partial.replace(self.path)
        report_truncated(items)


@dataclass(frozen=True)
class TaskRun:
    """A command with the values that it was given.

    Attributes:
        command: The command of a task.
        given: Typer's values by parameter.
        own: Those that set no field.
    """

    command: TaskCommand
    given: dict[str, Any]
    own: OwnFlags

    def run(self) -> int:
        """Run it and return the exit code."""
        self._check()
        task = self.command.task
        request = {"model": self.own.model, **values_of(self.command.fields, self.given)}
        check_required(task, self.command.fields, request)
        with connect(self.own.url, self.own.api_key, self.own.timeout) as client:
            if self.own.file is not None:
                return self._process_lines(client, request, self.own.file)
            request |= values_of(self.command.inputs, self.given)
            if self.own.stream:
                chunks = client.stream(stream_operation(task, **request))
                return print_stream(chunks, self._names(), as_json=self.own.as_json)
            response = client.send(operation(task, task.response, **request))
        return self._print(response, request.get(IMAGES) or ())

    def _check(self) -> None:
        """Raises BadParameter where flags do not go together."""
        own, has_lines = self.own, self.command.has_lines
        sources = [(flag.spelling, self._value(flag)) for flag in self.command.inputs]
        if has_lines:
            sources.append(("--file", own.file))
        given = tuple(flag.field for flag in self.command.inputs if self._value(flag))
        are_joined = len(given) > 1 and given == self.command.task.together and own.file is None
        if sum(bool(value) for _, value in sources) != 1 and not are_joined:
            *others, last = [spelling for spelling, _ in sources]
            raise typer.BadParameter(f"give either {', '.join(others)} or {last}")
        if own.output is not None and self._output_file is None and own.file is None:
            suffixes = " or ".join(self.command.task.command.formats)
            needs = " or ".join(["--file"] * has_lines + [f"a name in {suffixes}"] * bool(suffixes))
            raise typer.BadParameter(f"--output needs {needs}")
        if own.keep_going and self._output_file is not None:
            raise typer.BadParameter(f"--keep-going cannot leave a gap in {own.output}")
        if own.stream:
            self._check_stream()

    def _check_stream(self) -> None:
        excluded: dict[str, object] = {"--file": self.own.file, "--output": self.own.output}
        for flag in self.command.fields:
            if flag.field in self.command.task.not_streamed:
                excluded[flag.spelling] = self._value(flag)
        for spelling, value in excluded.items():
            if value not in (None, []):
                raise typer.BadParameter(f"{spelling} and --stream exclude each other")

    def _process_lines(self, client: AnyClient, request: dict[str, Any], file: str) -> int:
        task, name = self.command.task, self.command.inputs[0].field

        def send(lines: list[str]) -> Response[Any]:
            return client.send(operation(task, task.response, **request, **{name: lines}))

        own = self.own
        processor = LineProcessor(
            send, own.batch_size, keep_going=own.keep_going, as_json=own.as_json
        )
        source = None if file == "-" else Path(file)
        if self._output_file is not None:
            self._output_file.write(processor.items(source))
            return 0
        process_file(processor, source, own.output)
        for number in processor.cut:
            typer.echo(f"triptych: line {number}: {CUT}", err=True)
        for number, message in processor.failed:
            typer.echo(f"triptych: line {number}: {message}", err=True)
        return 1 if processor.failed else 0

    def _print(self, response: Response[Any], images: Sequence[bytes | Path]) -> int:
        if self._output_file is not None:
            self._output_file.write(response.data, images)
            return 0
        if self.own.as_json:
            print_json(response)
            return int(any(item.error for item in response.data))
        shown = values_of(self.command.rendering, self.given)
        render = self.command.task.command.render
        return print_items(
            response.data, lambda item, name: render(item, name, **shown), self._names()
        )

    @property
    def _output_file(self) -> OutputFile | None:
        """The file of `--output`, where its suffix is a format of the task."""
        path = self.own.output
        encode = self.command.task.command.formats.get(path.suffix) if path else None
        return OutputFile(path, encode) if path and encode else None

    def _names(self) -> Sequence[str] | None:
        """File names of the images, of first frames, or several texts of one; None for texts."""
        given = {flag.field: list(self._value(flag) or ()) for flag in self.command.inputs}
        images = given.pop(IMAGES, None)
        if images and (counts := self.given.get(FRAME_COUNTS)):
            images = [images[start] for start in (0, *accumulate(counts[:-1]))]
        return max([images, *given.values()], key=len) if images else None

    def _value(self, flag: TaskFlag) -> Any:
        return self.given[flag.parameter.name]


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
