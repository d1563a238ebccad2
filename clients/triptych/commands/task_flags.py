"""Fields of a request as arguments and flags of a command.

| field | on the command line |
|---|---|
| first input | positional, e.g. `TEXT ...`; `-` reads stdin |
| text, number | `--name VALUE`, with the field's range |
| bool | `--name/--no-name` |
| list | a repeated flag in the singular, `--label A --label B` |
| required list of texts | also `--labels-file`, one entry per line |
| message, list of messages | `--example "input => output"`, repeated for a list |
| map | a repeated flag of the same name, `--logit-bias ID=VALUE` |
| map of texts | also `--glossary-file`, as `triptych.glossaries.files` reads it |

Every command of the API has the fields of its request as flags (`task_flags`), `--model`, `--json`,
`--url`, `--api-key` and `--timeout`. A task that streams has `--stream`; one whose input is text
has `--file`, `--output`, `--batch-size` and `--keep-going`, and works line by line with them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from triptych import documents
from triptych.commands import options
from triptych.errors import InvalidArgument
from triptych.fields import Bounds, MessageField, field_of, fields_of
from triptych.glossaries.files import ARROW, read_terms
from triptych.task import IMAGES, Task

IMAGES_HELP = "Image files; - reads one from stdin."
_OWN = {"model", "stream"}
"""Fields with flags of the command itself."""


@dataclass(frozen=True)
class TaskFlag:
    """One parameter of a command that sets a field.

    Attributes:
        field: The field of the request, or of the render function's options.
        spelling: How the flag is written in messages, e.g. `--num-beams` or `TEXT`.
        parameter: The same for typer; its name is the key of the given value.
        read: The field's value from typer's.
    """

    field: str
    spelling: str
    parameter: inspect.Parameter
    read: Callable[[Any], Any]


def input_flags(task: Task, *, is_required: bool) -> list[TaskFlag]:
    """The inputs: the first one positional, others as repeated flags, e.g. `--image, --images`."""
    inputs = task.item_fields
    fields = fields_of(task.request)
    flags = []
    for place, name in enumerate(inputs):
        if place and fields[name].is_message:
            flags.append(field_flag(fields[name]))
            continue
        read = _read_images if name == IMAGES else _read_texts
        text = IMAGES_HELP if name == IMAGES else f"{fields[name].description} - reads stdin."
        singular = _singular(name)
        if place == 0:
            spelling = singular.upper()
            info = typer.Argument(metavar=spelling, help=text, show_default=False)
            default = inspect.Parameter.empty if is_required else None
            annotation: Any = list[str] if is_required else list[str] | None
        else:
            spelling, default = f"--{singular.replace('_', '-')}", None
            names = dict.fromkeys((spelling, f"--{name.replace('_', '-')}"))
            info = typer.Option(*names, help=f"{text} Repeatable.", show_default=False)
            annotation = list[str] | None
        flags.append(TaskFlag(name, spelling, _parameter(name, annotation, info, default), read))
    return flags


def request_flags(task: Task) -> list[TaskFlag]:
    """A flag for each field of the request that is no input."""
    inputs = set(task.item_fields)
    flags = []
    for field in fields_of(task.request).values():
        if field.name in _OWN | inputs or field.shape == "rows":
            continue
        flags.append(field_flag(field, task.command.short.get(field.name)))
        if field.is_required and field.shape == "list" and field.type is str:
            takes_documents = field.name in task.documents
            document = f", or a document ({', '.join(documents.TYPES)})" if takes_documents else ""
            text = f"File with one {_singular(field.name)} per line{document}."
            read = _lines_or_document if takes_documents else _lines
            flags.append(_file_flag(field, text, read))
        if field.shape == "map" and field.key is str and field.type is str:
            text = f'File with one "term{ARROW}rendering" per line, .tsv, .csv or .json.'
            flags.append(_file_flag(field, text, _pairs))
    return flags


def field_flag(field: MessageField, short: str | None = None) -> TaskFlag:
    """The flag of one field; `short` is its letter, e.g. `s` for `-s`."""
    name = _singular(field.name) if field.shape == "list" else field.name
    flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
    spelling, metavar, kind = flag, None, field.type
    read: Callable[[Any], Any] = _none_if_empty
    if field.shape == "map":
        metavar, kind = f"{'ID' if field.key is int else 'NAME'}=VALUE", str
        read = partial(_map, field, flag, metavar)
    elif field.is_message:
        metavar, kind = f'"{ARROW.join(field.type.model_fields)}"', str
        read = partial(_messages if field.shape == "list" else _message, field, flag)
    elif field.name == IMAGES:
        read = _read_images
    elif kind is bool:
        spelling = f"{flag}/--no-{flag[2:]}"
    info = typer.Option(
        *(spelling, *([f"-{short}"] if short else [])),
        metavar=metavar,
        help=f"{IMAGES_HELP} Repeatable." if field.name == IMAGES else _help(field),
        show_default=False,
        **_range(field),
    )
    annotation = kind if field.shape == "one" else list[kind]  # type: ignore[valid-type]
    return TaskFlag(field.name, flag, _parameter(field.name, annotation | None, info), read)


def values_of(flags: Iterable[TaskFlag], given: dict[str, Any]) -> dict[str, Any]:
    """Fields from typer's values, without those not given; flags of one list or map are joined.

    Raises:
        typer.BadParameter: A value is malformed.
    """
    values: dict[str, Any] = {}
    for flag in flags:
        value = given[flag.parameter.name]
        value = None if value is None else flag.read(value)
        if value is not None:
            before = values.get(flag.field)
            if isinstance(before, list):
                value = [*before, *value]
            elif isinstance(before, dict):
                value = {**before, **value}
            values[flag.field] = value
    return values


def check_required(task: Task, flags: Iterable[TaskFlag], values: dict[str, Any]) -> None:
    """Check that every required field has a value.

    Raises:
        typer.BadParameter: One has none; the message names its flags.
    """
    flags = list(flags)
    for field in fields_of(task.request).values():
        if field.is_required and field.name not in values:
            spellings = [flag.spelling for flag in flags if flag.field == field.name]
            if spellings:
                raise typer.BadParameter(f"no {field.name}: give {' or '.join(spellings)}")


def _file_flag(field: MessageField, text: str, read: Callable[[Path], Any]) -> TaskFlag:
    """The flag of a file that has entries of a list or map."""
    flag = f"--{field.name.replace('_', '-')}-file"
    info = typer.Option(flag, exists=True, dir_okay=False, help=text)
    return TaskFlag(field.name, flag, _parameter(f"{field.name}_file", Path | None, info), read)


def _parameter(name: str, annotation: Any, info: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, info],
    )


def _help(field: MessageField) -> str:
    parts = [field.description]
    if field.shape != "one":
        parts.append("Repeatable.")
    if field.default is not None:
        parts.append(f"[default: {str(field.default).lower()}]")
    if field.shape == "one" and not _range(field) and (text := range_text(field.bounds)):
        parts.append(f"[{text}]")
    return " ".join(part for part in parts if part)


def range_text(bounds: Bounds) -> str:
    """A range as typer writes it, e.g. `0<x<=1`; empty where there is none."""
    low = f"{bounds.minimum}<=" if bounds.minimum is not None else ""
    low = f"{bounds.above}<" if bounds.above is not None else low
    high = f"<={bounds.maximum}" if bounds.maximum is not None else ""
    high = f"<{bounds.below}" if bounds.below is not None else high
    return f"{low}x{high}" if low or high else ""


def _range(field: MessageField) -> dict[str, Any]:
    """Typer's range, where it can express the field's; the message checks every range."""
    bounds = field.bounds
    if field.type is int and bounds.above is None:
        return {"min": bounds.minimum, "max": bounds.maximum}
    if field.type is float and bounds.above is None and bounds.below is None:
        return {"min": bounds.minimum, "max": bounds.maximum}
    return {}


def _singular(name: str) -> str:
    return name.removesuffix("s")


def _none_if_empty(value: Any) -> Any:
    return None if value == [] else value


def _messages(field: MessageField, flag: str, texts: Sequence[str]) -> list[tuple[Any, ...]] | None:
    return [_message(field, flag, text) for text in texts] or None


def _message(field: MessageField, flag: str, text: str) -> tuple[Any, ...]:
    """The fields of a message from `input => output`."""
    parts = fields_of(field.type).values()
    texts = text.split(ARROW, maxsplit=len(parts) - 1)
    try:
        if not all(part.strip() for part in texts):
            raise ValueError
        return tuple(part.type(given) for part, given in zip(parts, texts, strict=True))
    except ValueError:
        form = ARROW.join(part.name for part in parts)
        raise typer.BadParameter(f'{flag} is "{form}", not {text!r}') from None


def _map(
    field: MessageField, flag: str, metavar: str, texts: Sequence[str]
) -> dict[Any, Any] | None:
    """A map from texts `key=value`."""
    values = {}
    for text in texts:
        key, _, value = text.rpartition("=")
        try:
            values[field.key(key)] = field.type(value)
        except ValueError:
            raise typer.BadParameter(f"{flag} is {metavar}, not {text!r}") from None
    return values or None


def _read_texts(texts: Sequence[str]) -> list[str] | None:
    """Texts as given, and the content of stdin for `-`."""
    return [sys.stdin.read().rstrip("\n") if text == "-" else text for text in texts] or None


def _read_images(names: Sequence[str]) -> list[bytes | Path] | None:
    """Paths, and the bytes of stdin for `-`."""
    return [sys.stdin.buffer.read() if name == "-" else Path(name) for name in names] or None


def _pairs(path: Path) -> dict[str, str] | None:
    """Term and rendering of each entry of a file."""
    try:
        return read_terms(path) or None
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def _lines_or_document(path: Path) -> list[str]:
    """A document, by the end of its name; of any other file, lines that are not blank."""
    return [documents.encode(path)] if path.suffix.lower() in documents.TYPES else _lines(path)


def _lines(path: Path) -> list[str]:
    """Lines of a file that are not blank."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text") from None
    return [line.strip() for line in text.split("\n") if line.strip()]


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
            *([own_parameter("stream", _STREAM, False)] if self.task.streams else []),
            own_parameter("model", _MODEL, None),
            own_parameter("url", options.Url, options.DEFAULT_URL),
            own_parameter("api_key", options.ApiKey, None),
            own_parameter("timeout", options.TimeoutS, options.DEFAULT_TIMEOUT_S),
            own_parameter("as_json", options.AsJson, False),
        ]

    def _line_parameters(self) -> list[inspect.Parameter]:
        lines = [own_parameter("file", _FILE, None)] if self.has_lines else []
        if self.has_lines or self.task.command.formats:
            whole = " or ".join(self.task.command.formats)
            gaps = ", from a file without blank lines" if self.has_lines else ""
            text = "Continued where it ends." if self.has_lines else ""
            text += f" Written whole as {whole}{gaps}." if whole else ""
            info = typer.Option("--output", "-o", dir_okay=False, help=text.strip())
            lines.append(own_parameter("output", Annotated[Path | None, info], None))
        if self.has_lines:
            lines.append(own_parameter("batch_size", _BATCH_SIZE, 16))
            lines.append(own_parameter("keep_going", _KEEP_GOING, False))
        return lines


def own_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter that sets no field."""
    return inspect.Parameter(
        f"{OWN}{name}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
