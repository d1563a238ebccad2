"""Tables of request fields and settings in the documentation, between two comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from serving.batch.job import BatchSettings
from serving.commands.flags import default_of, variable_of
from serving.settings.command_settings import CommandSettings, flag_of
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.triton_settings import ServeSettings, TritonSettings
from triptych.fields import Bounds, MessageField, fields_of
from triptych.messages import OutputParameters, StructureParameters
from triptych.task import IMAGES, Task
from triptych.tasks.generate import GenerateRequest

_BLOCK = re.compile(
    r"(<!-- fields of (?P<task>[\w-]+): made by `make proto` -->\n).*?(<!-- end of fields -->)",
    re.DOTALL,
)
_VERSION = re.compile(
    r"(\btriptych-(?:gateway|storage|triton(?:-gpu)?):|^(?:version|appVersion): )\d[\w.-]*",
    re.MULTILINE,
)
"""Tags of our images, and what the chart states."""
_TYPES: Mapping[Any, str] = {str: "text", bool: "boolean", int: "integer", float: "number"}


def with_tables(page: str, tasks: Mapping[str, Task]) -> str:
    """The page with the table of each task that it has a block for.

    Raises:
        KeyError: A block names an unknown task.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{_table(tasks[found['task']])}{found[3]}", page)


def with_version(text: str, version: str) -> str:
    """The page or deployment file with that version for each of our images and for the chart."""
    return _VERSION.sub(lambda found: f"{found[1]}{version}", text)


def _table(task: Task) -> str:
    rows = ["| field | type | range | meaning |", "|---|---|---|---|"]
    explained = _explained_elsewhere(task)
    for field in fields_of(task.request).values():
        if field.name in explained:
            continue
        meaning = f"{field.description}{' Required.' if field.is_required else ''}"
        cells = (f"`{field.name}`", _type(field), _range(field.bounds), meaning)
        rows.append(f"| {' | '.join(cells)} |")
    if explained:
        names = ", ".join(f"`{name}`" for name in explained)
        rows.append(f"| {names} | | | as of [generate](generate.md#fields) |")
    return "\n".join(rows) + "\n"


def _explained_elsewhere(task: Task) -> list[str]:
    """Parameters of tasks that may sample; the page of `generate` explains them."""
    if task.request is GenerateRequest or not issubclass(task.request, OutputParameters):
        return []
    known = fields_of(GenerateRequest)
    shared = {*OutputParameters.model_fields, *StructureParameters.model_fields}
    fields = fields_of(task.request)
    return [name for name in fields if name in shared and fields[name] == known[name]]


def _type(field: MessageField) -> str:
    name = "image" if field.name == IMAGES else _TYPES.get(field.type, "")
    if field.is_message:
        name = f"{{{', '.join(field.type.model_fields)}}}"
    if field.shape == "map":
        return f"map of {_TYPES[field.key]} to {name}"
    if field.shape != "list":
        return name if field.shape == "one" else f"list of lists of {name}s"
    return f"{name} or list of {name}s" if field.type is str else f"list of `{name}`"


def _range(bounds: Bounds) -> str:
    """A range in words, e.g. `1 to 16` or `above 0, up to 1`."""
    if bounds.minimum is not None and bounds.maximum is not None:
        return f"{bounds.minimum:,} to {bounds.maximum:,}"
    limits = {
        "at least": bounds.minimum,
        "above": bounds.above,
        "up to": bounds.maximum,
        "below": bounds.below,
    }
    return ", ".join(
        f"{word} {_number(value)}" for word, value in limits.items() if value is not None
    )


def _number(value: float) -> str:
    exponent = int(value).bit_length() - 1
    return f"2^{exponent}" if value == 2**exponent and exponent > 20 else f"{value:,}"


COMMANDS: dict[str, type[CommandSettings]] = {
    "serve": ServeSettings,
    "gateway": GatewaySettings,
    "triton": TritonSettings,
    "batch": BatchSettings,
}
_SETTINGS_BLOCK = re.compile(
    r"(<!-- settings: made by `make proto` -->\n).*?(<!-- end of settings -->)", re.DOTALL
)


def with_settings(page: str) -> str:
    """The page with the table of all settings where it has a block for it."""
    return _SETTINGS_BLOCK.sub(lambda found: f"{found[1]}{_table_settings()}{found[2]}", page)


def _table_settings() -> str:
    """One row for each setting; those of several commands have one row where they are alike."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for command, settings in COMMANDS.items():
        for name, field in settings.model_fields.items():
            if field.description:
                texts = (flag_of(name), variable_of(settings, name), default_of(field))
                shown = (f"`{text}`" if text else "" for text in texts)
                rows.setdefault((*shown, field.description), []).append(command)
    lines = ["| flag | of | variable | default | meaning |", "|---|---|---|---|---|"]
    for (flag, variable, default, meaning), commands in rows.items():
        lines.append(f"| {flag} | {', '.join(commands)} | {variable} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"
