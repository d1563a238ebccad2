"""Images in any common form, as the base64 of the protocol."""

from __future__ import annotations

import base64
import binascii
import io
import os
from pathlib import Path
from typing import IO, Protocol, TypeAlias, runtime_checkable

from triptych.errors import UnreadableImage


@runtime_checkable
class _Saveable(Protocol):
    """A `PIL.Image.Image`, without importing Pillow."""

    def save(self, fp: IO[bytes], format: str) -> None: ...


Image: TypeAlias = str | bytes | os.PathLike[str] | IO[bytes] | _Saveable
"""Path, bytes of an image file, open binary file, Pillow image, data URI or base64."""

# The smallest GIF has 26 bytes, hence 36 characters of base64. A missing file's name is mostly
# shorter, and has a dot, which base64 never has.
_SHORTEST_BASE64 = 36


def encode(image: Image) -> str:
    """Base64 of an image file's bytes; base64 and data URIs are returned unchanged.

    A Pillow image is encoded as PNG, without loss.

    Raises:
        UnreadableImage: The file does not exist, or `image` has no supported type.
    """
    if isinstance(image, str) and not _is_file(image):
        return _check(image)
    if isinstance(image, str | os.PathLike):
        return _base64(_read(Path(image)))
    if isinstance(image, bytes | bytearray | memoryview):
        return _base64(bytes(image))
    if isinstance(image, _Saveable):
        png = io.BytesIO()
        image.save(png, format="PNG")
        return _base64(png.getvalue())
    if hasattr(image, "read"):
        return _base64(image.read())
    raise UnreadableImage(
        f"{type(image).__name__} is not an image; give a path, bytes, an open binary file, "
        "a Pillow image, a data URI or base64"
    )


def decode(text: str) -> bytes:
    """Bytes of an image file from base64 or a base64 data URI.

    Raises:
        ValueError: Not base64.
    """
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise ValueError("not a base64 data URI; expected data:image/...;base64,...")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _is_file(text: str) -> bool:
    if text.startswith("data:"):
        return False
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # base64 of a large image is too long for a file name
        return False


def _check(text: str) -> str:
    if text.startswith("data:"):
        return text
    if len(text) < _SHORTEST_BASE64 or "." in text:
        raise UnreadableImage(f"no such file: {text[:200]}")
    try:
        decode(text)
    except ValueError as error:
        raise UnreadableImage(f"neither a file nor base64: {text[:40]}...") from error
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImage(f"cannot read {path}: {error.strerror}") from error


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
