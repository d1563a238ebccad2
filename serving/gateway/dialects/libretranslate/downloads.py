"""Translated files until they are fetched: in memory, for minutes, at names nothing guesses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from serving.errors import Overloaded, PayloadTooLarge, UnknownRoute

LIFETIME_S = 900
"""After it was translated, a file is forgotten."""
MAX_BYTES = 100_000_000
"""Of all files together."""
_TOKEN_BYTES = 32


@dataclass
class _File:
    content: bytes
    expires_s: float
    is_fetched: bool = False


class Downloads:
    """Files by name. Used on one event loop.

    Args:
        max_bytes: Of all files together.
        clock: Monotonic seconds.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._files: dict[str, _File] = {}

    def put(self, name: str, content: bytes) -> str:
        """Keep a file; the name under which it is fetched.

        Args:
            name: Of letters that a URL may have.
            content: Its bytes.

        Raises:
            Overloaded: too many files were not fetched yet.
            PayloadTooLarge: the file alone is larger than the limit.
        """
        if len(content) > self._max_bytes:
            raise PayloadTooLarge(f"the translated file has more than {self._max_bytes} bytes")
        self._forget(self._clock())
        for fetched in [key for key, file in self._files.items() if file.is_fetched]:
            if self._size + len(content) > self._max_bytes:
                del self._files[fetched]
        if self._size + len(content) > self._max_bytes:
            first = min(file.expires_s for file in self._files.values())
            raise Overloaded(
                "too many translated files were not downloaded yet",
                retry_after_s=max(1.0, first - self._clock()),
            )
        key = f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{name}"
        self._files[key] = _File(content, self._clock() + LIFETIME_S)
        return key

    def get(self, key: str) -> tuple[str, bytes]:
        """A file's own name and its bytes.

        Raises:
            UnknownRoute: there is none, or no more.
        """
        self._forget(self._clock())
        file = self._files.get(key)
        if file is None:
            raise UnknownRoute("no such file: translated files are kept for minutes only")
        file.is_fetched = True
        return key.partition(".")[2], file.content

    @property
    def _size(self) -> int:
        return sum(len(file.content) for file in self._files.values())

    def _forget(self, now_s: float) -> None:
        self._files = {key: file for key, file in self._files.items() if file.expires_s > now_s}
