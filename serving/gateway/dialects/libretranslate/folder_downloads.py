"""Translated files in a folder that several workers share; any of them answers for each file."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from serving.gateway.dialects.libretranslate.downloads import (
    LIFETIME_S,
    MAX_BYTES,
    check_size,
    forgotten,
    full,
    new_key,
    own_name,
    share,
)

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
            raise forgotten()
        for file in self._waiting.glob(f"{key}{_OWNED_BY}*"):
            with contextlib.suppress(FileNotFoundError):
                file.rename(self._fetched / file.name)
        for file in self._fetched.glob(f"{key}{_OWNED_BY}*"):
            with contextlib.suppress(FileNotFoundError):
                return own_name(key), file.read_bytes()
        raise forgotten()

    def forget(self) -> None:
        """Remove the files whose time is over."""
        for part in (self._waiting, self._fetched):
            for file, _, since_s in _sizes(part):
                if since_s + LIFETIME_S <= self._clock():
                    file.unlink(missing_ok=True)


def _owner(file: Path) -> str:
    return file.name.rpartition(_OWNED_BY)[2]


def _sizes(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Each file, its bytes, and when it was translated."""
    for file in list(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another worker has just moved it
            status = file.stat()
            yield file, status.st_size, status.st_mtime
