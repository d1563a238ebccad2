"""Translated files until they are fetched, in memory or in a folder that workers share.

Several workers keep them in a folder (`folder_downloads`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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
            raise unknown_file()
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


def unknown_file() -> UnknownRoute:
    """The error of a name without a file."""
    return UnknownRoute("no such file: translated files are kept for minutes only")


_KEY = re.compile(r"[\w-]{43}\.[\w.-]{1,200}", re.ASCII)
"""What `new_key` makes: a name of one file, whatever a client asks for."""
_OWNED_BY = "~"
"""In the name on disk, between that of the file and that of its key."""


class FolderDownloads:
    """Files by name, as `Downloads` keeps them in memory.

    A file's time of change says when it was translated. Its size counts from before its content is
    written, so that workers that add files at the same moment see each other's.

    Args:
        folder: Empty at the start; closed to other users.
        max_bytes: Of all files together.
        clock: Seconds since 1970.
    """

    def __init__(
        self, folder: Path, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._waiting, self._fetched = folder / "waiting", folder / "fetched"
        for part in (self._waiting, self._fetched):
            part.mkdir(exist_ok=True)

    def put(self, name: str, content: bytes, owner: str | None = None) -> str:
        """Keep a file; see `Downloads.put`."""
        check_size(content, self._max_bytes)
        self.forget()
        key = new_key(name)
        file = self._waiting / f"{key}{_OWNED_BY}{owner or ''}"
        try:
            self._write(file, content)
        except OSError:  # the disk is full
            file.unlink(missing_ok=True)
            raise full(1.0) from None
        return key

    def _write(self, file: Path, content: bytes) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            os.posix_fallocate(descriptor, 0, max(1, len(content)))
            self._make_room(file)
            opened.write(content)
            opened.truncate(len(content))
        os.utime(file, (self._clock(), self._clock()))

    def _make_room(self, new: Path) -> None:
        """Drop fetched files, the oldest first, until all fit.

        Raises:
            Overloaded: they do not.
        """
        owner = _owner(new)
        own = [
            (size, since) for file, size, since in _sizes(self._waiting) if owner == _owner(file)
        ]
        if owner and sum(size for size, _ in own) > share(self._max_bytes):
            new.unlink(missing_ok=True)
            raise full(min(since for _, since in own) + LIFETIME_S - self._clock())
        fetched = sorted(_sizes(self._fetched), key=lambda found: found[2])
        waiting = list(_sizes(self._waiting))
        excess = sum(size for _, size, _ in (*fetched, *waiting)) - self._max_bytes
        for file, size, _ in fetched:
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= size
        if excess > 0:
            new.unlink(missing_ok=True)
            first_s = min((since for file, _, since in waiting if file != new), default=0.0)
            raise full(first_s + LIFETIME_S - self._clock())

    def get(self, key: str) -> tuple[str, bytes]:
        """A file's own name and its bytes.

        Raises:
            UnknownRoute: there is none, or no more.
        """
        self.forget()
        if not _KEY.fullmatch(key):
            raise unknown_file()
        for file in self._waiting.glob(f"{key}{_OWNED_BY}*"):
            with contextlib.suppress(FileNotFoundError):
                file.rename(self._fetched / file.name)
        for file in self._fetched.glob(f"{key}{_OWNED_BY}*"):
            with contextlib.suppress(FileNotFoundError):
                return own_name(key), file.read_bytes()
        raise unknown_file()

    def forget(self) -> None:
        """Remove the files whose time is over."""
        for part in (self._waiting, self._fetched):
            for file, _, since_s in _sizes(part):
                if since_s + LIFETIME_S <= self._clock():
                    file.unlink(missing_ok=True)


DownloadStore: TypeAlias = Downloads | FolderDownloads


def _owner(file: Path) -> str:
    return file.name.rpartition(_OWNED_BY)[2]


def _sizes(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Each file, its bytes, and when it was translated."""
    for file in list(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another worker has just moved it
            status = file.stat()
            yield file, status.st_size, status.st_mtime
