"""Flags of a command, one for each field of its settings.

A refused value is not repeated in the error: it may be a secret.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from serving.settings.command_settings import PREFIX, CommandSettings, flag_of
from triptych.errors import first_fault

S = TypeVar("S", bound=CommandSettings)


def with_flags(settings: type[S]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command one flag for each setting; it receives the settings as `settings`.

    Flags are text, which the settings read like an environment variable. The command's other
    parameters are flags too.
    """
    fields = {name: field for name, field in settings.model_fields.items() if field.description}

    def add_flags(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            flags = {name: text for name in fields if (text := given.pop(name)) is not None}
            return command(settings=_validate(settings, flags), **given)

        signature = inspect.signature(command, eval_str=True)
        own = [each for name, each in signature.parameters.items() if name != "settings"]
        flags = [_flag(settings, name, field) for name, field in fields.items()]
        run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer would read those of the command
        return run

    return add_flags


def variable_of(settings: type[CommandSettings], name: str) -> str | None:
    """The environment variable of a setting, if it has one."""
    return None if name in settings.without_variable else f"{PREFIX}{name.upper()}"


def _flag(settings: type[CommandSettings], name: str, field: FieldInfo) -> inspect.Parameter:
    flag, variable, default = flag_of(name), variable_of(settings, name), default_of(field)
    texts = (field.description, variable and f"${variable}.", default and f"[{default}]")
    text = " ".join(text for text in texts if text)
    annotation: Any
    if field.annotation is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)
        annotation = Annotated[bool | None, option]
    else:
        option = typer.Option(flag, metavar="VALUE", help=text, show_default=False)
        annotation = Annotated[str | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def default_of(field: FieldInfo) -> str:
    """The default as text; empty where the description says what holds without a value."""
    default = None if field.default_factory else field.default
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(default)
    return "" if default is None else str(default)


def _validate(settings: type[S], flags: dict[str, Any]) -> S:
    """The settings; a value that they refuse is one line that names its flag or variable."""
    try:
        return settings(**flags)
    except ValidationError as error:
        place, message = first_fault(error)
        name = place.partition(".")[0]
        source = flag_of(name) if name in flags else f"${variable_of(settings, name)}"
        raise typer.BadParameter(f"{source}: {message}" if name else message) from None
