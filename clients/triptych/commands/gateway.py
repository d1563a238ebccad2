"""`triptych gateway`: a flag for each field of its settings, so that none is forgotten."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triptych.commands.installed import forwarded, imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def gateway(context: typer.Context) -> int:
    """The HTTP and gRPC front of a running Triton; ends with SIGTERM."""
    settings = imported("serving.settings", "serve-cpu").GatewaySettings
    return forwarded(_command(settings), context)


def _command(settings: type[BaseModel]) -> Callable[..., int]:
    def run(**flags: Any) -> int:
        """The HTTP and gRPC front of a running Triton; ends with SIGTERM.

        \b
        triptych gateway --triton 127.0.0.1:8001 --repository model_repository

        Every flag is also an environment variable.
        """
        code: int = imported("serving.gateway", "serve-cpu").run_gateway(
            _validated(settings, {name: value for name, value in flags.items() if value})
        )
        return code

    fields = settings.model_fields.items()
    run.__signature__ = inspect.Signature([_flag(*field) for field in fields])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """The flag of one field: text, which the settings parse as they parse the environment."""
    default = "" if field.is_required() or field.default in (None, ()) else f" [{field.default}]"
    text = f"{field.description or ''}{default}".strip()
    is_many = typing.get_origin(field.annotation) in (list, tuple, set, frozenset)
    flag = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)
    annotation = Annotated[list[str] | None, flag] if is_many else Annotated[str | None, flag]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _validated(settings: type[BaseModel], given: dict[str, Any]) -> BaseModel:
    from pydantic import ValidationError

    try:
        return settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "the settings"
        raise typer.BadParameter(f"{flag}: {first['msg']}") from None
