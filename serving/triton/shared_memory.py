"""The shared-memory files of one server: named so that only ours are ever removed.

A server that is killed leaves its files in `/dev/shm`. Each server therefore gets a prefix of its
own and a lock file that the server process inherits: while anyone of the family lives the lock is
held, whatever the pid namespace; a file whose lock can be taken is left over.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

FOLDER = Path("/dev/shm")
FAMILY = "triptych_"


class SharedMemory:
    """A prefix for the regions of one server, locked until `remove`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        _remove_left_over(folder)
        self._folder = folder
        self.prefix = f"{FAMILY}{uuid.uuid4().hex}_"
        self.lock = os.open(folder / f"{self.prefix}lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def files(self) -> list[Path]:
        """Every file of this server, the lock included."""
        return sorted(self._folder.glob(f"{self.prefix}*"))

    def remove(self) -> None:
        """Remove the files; call it when the server and its stubs are gone."""
        for path in self.files():
            path.unlink(missing_ok=True)
        os.close(self.lock)


def _remove_left_over(folder: Path) -> None:
    """Remove the files of servers whose whole family is gone."""
    for lock in folder.glob(f"{FAMILY}*_lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # another user's, or gone since
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            for path in folder.glob(f"{lock.name.removesuffix('lock')}*"):
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
