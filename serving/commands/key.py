"""`triptych key`: a new API key, and its entry in the gateway's file."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from triptych.errors import InvalidArgument, TriptychError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RESERVED = "default"
Limit = Annotated[int | None, typer.Option(min=1, help="More at once get 429.")]


def key(
    name: Annotated[str, typer.Argument(help="Whose key it is; logs show this name.")],
    *,
    file: Annotated[
        Path, typer.Option(help="File of keys (`triptych gateway --api-keys`); made if missing.")
    ] = Path("api-keys.toml"),
    max_concurrent_requests: Limit = None,
    max_concurrent_tokens: Limit = None,
    max_concurrent_pixels: Limit = None,
    max_concurrent_bytes: Limit = None,
) -> int:
    """Make an API key: print it once, and add its hash to the gateway's file of keys.

    \b
    triptych key alice
    triptych key batch-jobs --file keys.toml --max-concurrent-requests 4
    triptych gateway --api-keys api-keys.toml

    A running gateway reads the file again within a second. To revoke a key, delete its entry.
    """
    if not _NAME.fullmatch(name) or name == _RESERVED:
        raise InvalidArgument(
            f"a name is 1 to 64 of the characters A-Z a-z 0-9 . _ - and not {_RESERVED!r}"
        )
    before = _read(file)
    if name in _names(before, file):
        raise InvalidArgument(f"{file} has a key of that name: delete its entry first")
    made = secrets.token_urlsafe(32)
    entry = {
        "name": f'"{name}"',
        "sha256": f'"{hashlib.sha256(made.encode()).hexdigest()}"',
        "max_concurrent_requests": max_concurrent_requests,
        "max_concurrent_tokens": max_concurrent_tokens,
        "max_concurrent_pixels": max_concurrent_pixels,
        "max_concurrent_bytes": max_concurrent_bytes,
    }
    lines = [f"{field} = {value}" for field, value in entry.items() if value is not None]
    separator = "\n" if before.strip() else ""
    _replace(file, before + separator + "\n".join(["[[keys]]", *lines, ""]))
    typer.echo(made)
    typer.echo(f"added {name} to {file}; the key is not stored and is shown only here", err=True)
    return 0


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise TriptychError(f"cannot read {file}: {error}") from None
    return text if text.endswith("\n") or not text else text + "\n"


def _names(text: str, file: Path) -> set[object]:
    try:
        return {each.get("name") for each in tomllib.loads(text).get("keys", [])}
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise TriptychError(f"{file} is not a file of keys: {error}") from None


def _replace(file: Path, text: str) -> None:
    """Write the file whole under another name first: a gateway may read it at any moment."""
    written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        written.replace(file)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise TriptychError(f"cannot write {file}: {error.strerror}") from None
