"""The supervisor's control socket: how `triptych reload` and `triptych rollback` reach it.

A Unix socket in the temporary folder, named after the repository, that the supervisor's user alone
may use. Each connection carries one command and its outcomes, as JSON lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serving.errors import SetupError
from serving.triton.version_control import Command, Outcome

log = logging.getLogger(__name__)

_OUTCOMES = TypeAdapter(list[Outcome])
_MOST_BYTES = 65536
_PATIENCE_S = 5.0
"""For a peer that connects and sends nothing."""


def socket_path(repository: Path) -> Path:
    """Where the supervisor of a repository listens."""
    digest = hashlib.sha256(str(repository.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"triptych-{digest}.sock"


def send(repository: Path, command: Command, timeout_s: float) -> list[Outcome]:
    """Run a command on the supervisor of a repository.

    Raises:
        SetupError: none runs on this machine, it may not be reached, or it did not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(socket_path(repository)))
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
        self._path = socket_path(repository)
        self._pending: queue.SimpleQueue[tuple[Command, socket.socket]] = queue.SimpleQueue()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.is_first = True
        """Whether no other supervisor serves the repository."""
        self.is_listening = self._listen()

    def close(self) -> None:
        """Stop listening; commands that have not run end without an answer."""
        if self.is_listening:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._path.unlink(missing_ok=True)
        self._listener.close()

    def run_pending(self, run: Callable[[Command], list[Outcome]]) -> None:
        """Run the commands that have arrived, and answer them."""
        with contextlib.suppress(queue.Empty):
            while True:
                command, connection = self._pending.get_nowait()
                with connection, contextlib.suppress(OSError):  # the peer may have gone
                    connection.sendall(_OUTCOMES.dump_json(run(command)) + b"\n")

    def _listen(self) -> bool:
        try:
            self._remove_stale()
            before = os.umask(0o177)
            try:
                self._listener.bind(str(self._path))
            finally:
                os.umask(before)
            self._listener.listen()
        except OSError as error:
            log.warning("reload and rollback cannot be used: %s: %s", self._path, error.strerror)
            return False
        threading.Thread(target=self._accept, name="control-socket", daemon=True).start()
        return True

    def _remove_stale(self) -> None:
        """Remove the socket of a dead supervisor.

        Raises:
            OSError: another one listens there.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                self._path.unlink(missing_ok=True)
                return
        self.is_first = False
        raise OSError(0, "another supervisor serves this repository")

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


def _line(connection: socket.socket) -> bytes:
    """What the peer sends up to its first line end, or to its end."""
    received = b""
    while not received.endswith(b"\n") and len(received) < _MOST_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        received += chunk
    return received
