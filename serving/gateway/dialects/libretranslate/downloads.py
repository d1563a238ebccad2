"""Translated files until they are fetched: in memory, for minutes, at names nothing guesses.

Several workers keep them in a folder (`folder_downloads`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference.errors import Overloaded, PayloadTooLarge, UnknownRoute

LIFETIME_S = 900
"""After it was translated, a file is forgotten."""
MAX_BYTES = 100_000_000
"""Of all files together; of those that one key has not fetched, the half."""
_TOKEN_BYTES = 32


@dataclass
class _File:
    content: bytes
    expires_s: float
    owner: str | None
    is_fetched: bool = False


class DownloadStore(Protocol):
    """Files by name."""

    def put(self, name: str, content: bytes, owner: str | None = None) -> str:
        """Keep a file of a key; the name under which it is fetched."""
        ...

    def get(self, key: str) -> tuple[str, bytes]:
        """A file's own name and its bytes."""
        ...


class Downloads:
    """Files by name, in memory. Used on one event loop.

    Args:
        max_bytes: Of all files together.
        clock: Monotonic seconds.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._files: dict[str, _File] = {}

    def put(self, name: str, content: bytes, owner: str | None = None) -> str:
        """Keep a file; the name under which it is fetched.

        Args:
            name: Of letters that a URL may have.
            owner: Name of the key that translated it.

        Raises:
            Overloaded: too many files were not fetched yet.
            PayloadTooLarge: the file alone is larger than the limit.
        """
        check_size(content, self._max_bytes)
        self._forget(self._clock())
        if owner is not None:
            own = [f for f in self._files.values() if f.owner == owner and not f.is_fetched]
            if sum(len(file.content) for file in own) + len(content) > share(self._max_bytes):
                raise full(min((f.expires_s for f in own), default=0.0) - self._clock())
        for fetched in [key for key, file in self._files.items() if file.is_fetched]:
            if self._size + len(content) > self._max_bytes:
                del self._files[fetched]
        if self._size + len(content) > self._max_bytes:
            first = min(file.expires_s for file in self._files.values())
            raise full(first - self._clock())
        key = new_key(name)
        self._files[key] = _File(content, self._clock() + LIFETIME_S, owner)
        return key

    def get(self, key: str) -> tuple[str, bytes]:
        """A file's own name and its bytes.

        Raises:
            UnknownRoute: there is none, or no more.
        """
        self._forget(self._clock())
        file = self._files.get(key)
        if file is None:
            raise forgotten()
        file.is_fetched = True
        return own_name(key), file.content

    @property
    def _size(self) -> int:
        return sum(len(file.content) for file in self._files.values())

    def _forget(self, now_s: float) -> None:
        self._files = {key: file for key, file in self._files.items() if file.expires_s > now_s}


def new_key(name: str) -> str:
    """A name that nothing guesses, with the file's own at its end."""
    return f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{name}"


def own_name(key: str) -> str:
    """The file's own name."""
    return key.partition(".")[2]


def check_size(content: bytes, max_bytes: int) -> None:
    """Refuse a file that could never be kept.

    Raises:
        PayloadTooLarge: it is larger than all files may be.
    """
    if len(content) > max_bytes:
        raise PayloadTooLarge(f"the translated file has more than {max_bytes} bytes")


def share(max_bytes: int) -> int:
    """Of all files, what the files of one key may take that it has not fetched."""
    return max_bytes // 2


def full(free_in_s: float) -> Overloaded:
    """The error of a file that does not fit, until one that is not fetched is forgotten."""
    return Overloaded(
        "too many translated files were not downloaded yet", retry_after_s=max(1.0, free_in_s)
    )


def forgotten() -> UnknownRoute:
    """The error of a name without a file."""
    return UnknownRoute("no such file: translated files are kept for minutes only")
