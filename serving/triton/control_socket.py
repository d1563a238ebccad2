"""The supervisor's control socket: how `triptych reload` and `triptych rollback` reach it.

A Unix socket named after the repository, in a folder that only the supervisor's user can enter; in
an open folder another user could bind the name first. Each connection carries one command and its
outcomes, as JSON lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from inference.errors import SetupError
from serving.triton.version_control import Command, Outcome

log = logging.getLogger(__name__)

_OUTCOMES = TypeAdapter(list[Outcome])
_MOST_BYTES = 65536
_PATIENCE_S = 5.0
"""For a peer that connects and sends nothing."""


def socket_paths(repository: Path) -> list[Path]:
    """Where the supervisor of a repository may listen, the preferred path first.

    `XDG_RUNTIME_DIR` comes second, for a temporary folder in which another user has taken the name:
    it is removed when its user logs out, which a supervisor may survive.
    """
    digest = hashlib.sha256(str(repository.resolve()).encode()).hexdigest()[:16]
    parents = filter(None, [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR")])
    return [Path(parent) / f"triptych-{os.getuid()}" / f"{digest}.sock" for parent in parents]


def _is_private(folder: Path) -> bool:
    """Whether a folder is this user's and closed to others.

    Raises:
        OSError: there is none.
    """
    found = folder.lstat()  # a link would lead where another user decides
    is_closed = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return is_closed and found.st_uid == os.getuid()


def send(repository: Path, command: Command, timeout_s: float) -> list[Outcome]:
    """Run a command on the supervisor of a repository.

    Raises:
        SetupError: none runs on this machine, it may not be reached, or it did not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(_listening(repository)))
            connection.sendall(command.model_dump_json().encode() + b"\n")
            line = _line(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            raise SetupError(
                f"no `triptych triton` or `triptych serve` runs on {repository} here: start it, or "
                "run this command on its machine or in its container"
            ) from None
        except TimeoutError:
            raise SetupError(
                f"no answer within {timeout_s:g} s: see the supervisor's log"
            ) from None
        except OSError as error:
            raise SetupError(f"cannot reach the supervisor: {error.strerror}") from None
    if not line:
        raise SetupError("the supervisor ended before it answered: see its log")
    return _OUTCOMES.validate_json(line)


class ControlSocket:
    """The supervisor's end. A thread accepts commands, `run_pending` runs them.

    Args:
        repository: Of the supervised server.
    """

    def __init__(self, repository: Path) -> None:
        self._paths = socket_paths(repository)
        self._path: Path | None = None
        self._pending: queue.SimpleQueue[tuple[Command, socket.socket]] = queue.SimpleQueue()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.is_first = True
        """Whether no other supervisor serves the repository."""
        self.is_listening = self._listen()

    def take_over(self) -> bool:
        """Listen in place of the repository's first supervisor, if that has ended meanwhile."""
        if self.is_first or any(map(_is_served, self._paths)):
            return False
        self.is_first = True
        self.is_listening = self._listen()
        return True

    def close(self) -> None:
        """Stop listening; commands that have not run end without an answer."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)  # first: the next supervisor's has the same name
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def run_pending(self, run: Callable[[Command], list[Outcome]]) -> None:
        """Run the commands that have arrived, and answer them."""
        with contextlib.suppress(queue.Empty):
            while True:
                command, connection = self._pending.get_nowait()
                with connection, contextlib.suppress(OSError):  # the peer may have gone
                    connection.sendall(_OUTCOMES.dump_json(run(command)) + b"\n")

    def _listen(self) -> bool:
        problem = "no folder for the socket: set TMPDIR"
        for path in self._paths:
            if _is_served(path):
                self.is_first = False
                problem = "another supervisor serves this repository, until that has ended"
                break
        for path in self._paths if self.is_first else ():
            try:
                with contextlib.suppress(FileExistsError):
                    path.parent.mkdir(mode=0o700)
                if not _is_private(path.parent):
                    problem = f"{path.parent} is not a folder of this user alone (mode 0700)"
                    continue
                path.unlink(missing_ok=True)  # of a supervisor that was killed
                self._listener.bind(str(path))
                self._listener.listen()
            except OSError as error:
                problem = f"{path}: {error.strerror or error}"
                continue
            self._path = path
            threading.Thread(target=self._accept, name="control-socket", daemon=True).start()
            return True
        log.warning("reload and rollback cannot be used: %s", problem)
        return False

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            connection.settimeout(_PATIENCE_S)
            try:
                command = Command.model_validate_json(_line(connection))
            except (OSError, ValidationError):
                connection.close()
            else:
                self._pending.put((command, connection))


def _is_served(path: Path) -> bool:
    """Whether a supervisor listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            if not _is_private(path.parent):
                return False
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _listening(repository: Path) -> Path:
    """The socket of the repository's supervisor.

    Raises:
        FileNotFoundError: none listens.
    """
    for path in socket_paths(repository):
        if _is_served(path):
            return path
    raise FileNotFoundError(repository)


def _line(connection: socket.socket) -> bytes:
    """What the peer sends up to its first line end, or to its end."""
    received = b""
    while not received.endswith(b"\n") and len(received) < _MOST_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        received += chunk
    return received
