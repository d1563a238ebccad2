"""The table of the server's settings in the documentation, between two comments of a page."""

from __future__ import annotations

import re

from serving.batch.settings import BatchSettings
from serving.commands.flags import default_of, variable_of
from serving.settings.command_settings import CommandSettings, flag_of
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.model_settings import ServeSettings
from serving.settings.triton_settings import TritonSettings

COMMANDS: dict[str, type[CommandSettings]] = {
    "serve": ServeSettings,
    "gateway": GatewaySettings,
    "triton": TritonSettings,
    "batch": BatchSettings,
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
                texts = (flag_of(name), variable_of(settings, name), default_of(field))
                rows.setdefault((*map(_code, texts), field.description), []).append(command)
    lines = ["| flag | of | variable | default | meaning |", "|---|---|---|---|---|"]
    for (flag, variable, default, meaning), commands in rows.items():
        lines.append(f"| {flag} | {', '.join(commands)} | {variable} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""
