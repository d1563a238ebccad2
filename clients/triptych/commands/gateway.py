"""`triptych gateway`, with one flag for each field of its settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triptych.commands.lazy_import import forwarded, imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def gateway(context: typer.Context) -> int:
    """Serve HTTP and gRPC in front of a running Triton; SIGTERM stops it."""
    settings = imported("serving.settings.gateway_settings", "serve-cpu").GatewaySettings
    return forwarded(_command(settings), context)


def _command(settings: type[BaseModel]) -> Callable[..., int]:
    def run(**flags: Any) -> int:
        """Serve HTTP and gRPC in front of a running Triton; SIGTERM stops it.

        \b
        triptych gateway --triton 127.0.0.1:8001 --repository model_repository

        Flags that are not given are taken from the environment.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        validated = _validated(settings, given)
        code: int = imported("serving.gateway", "serve-cpu").run_gateway(validated)
        return code

    prefix = settings.model_config.get("env_prefix", "")
    flags = [_flag(name, field, str(prefix)) for name, field in settings.model_fields.items()]
    run.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read those of the function above
    return run


def _flag(name: str, field: FieldInfo, prefix: str) -> inspect.Parameter:
    """The flag of one field: a string, parsed by the settings like an environment variable."""
    flag = f"--{name.replace('_', '-')}"
    texts = (field.description, f"${prefix}{name.upper()}.", _default(field))
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


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default is None or field.default in ((), False):
        return ""
    return f"[{field.default}]"


def _validated(settings: type[BaseModel], given: dict[str, Any]) -> BaseModel:
    from pydantic import ValidationError

    try:
        return settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "the settings"
        raise typer.BadParameter(f"{flag}: {first['msg']}") from None
