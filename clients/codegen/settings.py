"""The table of the server's settings in the documentation, between two comments of a page."""

from __future__ import annotations

import re

from pydantic.fields import FieldInfo

from serving.commands.flags import variable_of
from serving.settings.command_settings import CommandSettings, ServeSettings, flag_of
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.triton_settings import TritonSettings

COMMANDS: dict[str, type[CommandSettings]] = {
    "serve": ServeSettings,
    "gateway": GatewaySettings,
    "triton": TritonSettings,
}
_BLOCK = re.compile(
    r"(<!-- settings: made by `make proto` -->\n).*?(<!-- end of settings -->)", re.DOTALL
)


def with_settings(page: str) -> str:
    """The page with the table of all settings where it has a block for it."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_table()}{found[2]}", page)


def _table() -> str:
    """One row for each setting; those of several commands have one row where they are alike."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for command, settings in COMMANDS.items():
        for name, field in settings.model_fields.items():
            if field.description:
                variable = variable_of(settings, name)
                cells = (f"`{flag_of(name)}`", f"`{variable}`" if variable else "", _default(field))
                rows.setdefault((*cells, field.description), []).append(command)
    lines = ["| flag | of | variable | default | meaning |", "|---|---|---|---|---|"]
    for (flag, variable, default, meaning), commands in rows.items():
        lines.append(f"| {flag} | {', '.join(commands)} | {variable} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    default = None if field.default_factory else field.default
    if isinstance(default, bool):
        return "on" if default else "off"
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return "" if default is None or not text else f"`{text}`"
