"""`triptych gateway`, with one flag for each field of its settings."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from serving.gateway import run_gateway
from serving.settings.gateway_settings import GatewaySettings


def gateway(**flags: Any) -> int:
    """Serve HTTP and gRPC in front of a running Triton; SIGTERM stops it.

    \b
    triptych gateway --triton 127.0.0.1:8001 --repository model_repository

    Flags that are not given are taken from the environment.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    return run_gateway(_validated(given))


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """The flag of one field: a string, parsed by the settings like an environment variable."""
    flag = f"--{name.replace('_', '-')}"
    texts = (field.description, f"$TRIPTYCH_{name.upper()}.", _default(field))
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


def _validated(given: dict[str, Any]) -> GatewaySettings:
    try:
        return GatewaySettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "the settings"
        raise typer.BadParameter(f"{flag}: {first['msg']}") from None


_FLAGS = [_flag(name, field) for name, field in GatewaySettings.model_fields.items()]
gateway.__signature__ = inspect.Signature(_FLAGS)  # type: ignore[attr-defined]
gateway.__annotations__ = {}  # typer would read those of the function
