"""What one server leaves on the machine, named so that only ours is ever removed.

A server keeps shared-memory files in `/dev/shm` and its backend directory in the temporary folder;
killed, it leaves them. So each server has a prefix of its own and a lock file that its processes
inherit: while any of them lives the lock is held, whatever the pid namespace, and whatever bears
the prefix of a lock that can be taken is left over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
FAMILY = "triptych_"


class Belongings:
    """The prefix and the backend directory of one server, locked until `remove`.

    Making one removes what dead servers left.

    Args:
        shared_memory: Where Triton's python backend keeps its regions.
        temporary: Where the backend directory goes; None: the system's temporary folder.
    """

    def __init__(self, shared_memory: Path = SHARED_MEMORY, temporary: Path | None = None) -> None:
        self._folders = (shared_memory, temporary or Path(tempfile.gettempdir()))
        self._remove_left_over()
        self.prefix = f"{FAMILY}{uuid.uuid4().hex}_"
        self.lock = os.open(shared_memory / f"{self.prefix}lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.backends = self._folders[1] / f"{self.prefix}backends"
        self.backends.mkdir(mode=0o700)

    def paths(self) -> list[Path]:
        """Everything that bears this server's prefix, the lock included."""
        return self._bearing(self.prefix)

    def remove(self) -> None:
        """Remove everything; call it when the server and its stubs are gone."""
        for path in self.paths():
            _remove(path)
        os.close(self.lock)

    def _remove_left_over(self) -> None:
        for lock in self._folders[0].glob(f"{FAMILY}*_lock"):
            if _is_held(lock):
                continue
            for path in self._bearing(lock.name.removesuffix("lock")):
                _remove(path)

    def _bearing(self, prefix: str) -> list[Path]:
        return sorted(path for folder in self._folders for path in folder.glob(f"{prefix}*"))


def _is_held(lock: Path) -> bool:
    """Whether a process has the lock; another user's counts as held, for we could not remove it."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
