"""A child process that runs functions, as its parent sees it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from serving.processes.launcher import module_command
from serving.processes.supervision import exit_reason, start_connected

_PROGRAM = module_command("serving.process_pool.child")
_SETTINGS = "TRIPTYCH_"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Each thread of a library takes address space, which is limited."""


class ProcessEnded(Exception):
    """The process ended while it worked.

    Args:
        code: Its exit code; negative: the signal that killed it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(exit_reason(code))
        self.took_too_long = code == -signal.SIGXCPU


@dataclass(frozen=True)
class WorkLimits:
    """Limits of one piece of work.

    Attributes:
        memory_bytes: Memory that it may take.
        processor_s: Processor time that it may take.
    """

    memory_bytes: int
    processor_s: int


class Process:
    """A child process, started at once; `run` waits until it has loaded its modules.

    Methods but `kill` run in one thread at a time. The child ends with the thread that made it.
    """

    def __init__(self, limits: WorkLimits) -> None:
        self.is_killed = False
        self._connection, self._child = start_connected(
            _PROGRAM,
            *(limits.memory_bytes, limits.processor_s),
            stdout=subprocess.DEVNULL,
            env=_environment(),  # without the gateway's secrets
        )

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    @property
    def is_usable(self) -> bool:
        """Whether it has neither ended nor been killed."""
        return not self.is_killed and self._child.poll() is None

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The function's result.

        Raises:
            ProcessEnded: the child ended before.
            Exception: the function's own.
        """
        content = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
        try:
            self._connection.send_bytes(content)
            is_result, value = self._connection.recv()
        except (EOFError, OSError):
            self.kill()
            raise ProcessEnded(self._child.wait()) from None
        if is_result:
            return value
        raise value

    def kill(self) -> None:
        """End the child now; `run` raises. From any thread."""
        self.is_killed = True
        self._child.kill()

    def close(self) -> None:
        """End the child and wait for it. From any thread."""
        self.kill()
        self._child.wait()


class Slot:
    """A place for one process, which is replaced when it has ended.

    Methods but `kill` run in one thread at a time.
    """

    def __init__(self, limits: WorkLimits) -> None:
        self._limits = limits
        self._process: Process | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the process, if there is one."""
        return self._process.pid if self._process else None

    def start(self) -> Process:
        """The process, started if there is none or it has ended."""
        with self._lock:
            if self._is_closed:
                raise ProcessEnded(0)
            if self._process is not None and not self._process.is_usable:
                self._process.close()
                self._process = None
            if self._process is None:
                self._process = self._make_process()
            return self._process

    def _make_process(self) -> Process:
        return Process(self._limits)

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The function's result; a process that ends is replaced at once.

        Raises:
            ProcessEnded: it ended before.
            Exception: the function's own.
        """
        try:
            return self.start().run(function, arguments)
        except MemoryError:  # what is left of the memory may be in pieces
            self.kill()
            raise
        finally:
            with suppress(ProcessEnded):
                self.start()

    def kill(self) -> None:
        """End the process. From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process for good. From any thread."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.close()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return kept | dict.fromkeys(_ONE_THREAD, "1")
