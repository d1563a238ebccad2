"""Child processes run as a group: when one ends, or this process does, all are stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from triptych.errors import TriptychError

POLL_S = 0.1
STOP_TIMEOUT_S = 60.0
_STACKS_S = 1.0
"""Time in which a child writes where its threads are, before it is killed."""
IMMEDIATE_STOP_TIMEOUT_S = 5.0
"""After a second SIGTERM."""
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


class Processes:
    """Commands that run side by side until a signal, or until one of them ends.

    Each child leads its own session: Ctrl-C reaches this process alone, which stops the children in
    order, and the children's remaining processes can be killed by session.

    Args:
        commands: Program and arguments by name; the name appears in messages.
    """

    def __init__(self, commands: dict[str, Sequence[str]]) -> None:
        self._commands = commands
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._signal: int | None = None
        self._is_immediate = False
        self._wake = threading.Event()

    def run(self, is_ready: Callable[[], bool], on_ready: Callable[[], None]) -> int:
        """Start all, call `on_ready` once `is_ready`, stop all on SIGINT or SIGTERM.

        A second signal is passed on; children that do not end soon after it are killed.

        Returns:
            0 after SIGTERM.

        Raises:
            KeyboardInterrupt: After SIGINT, once all have ended.
            TriptychError: A child ended by itself, and the others have been stopped; or one did not
                stop and was killed.
        """
        overdue: list[str] = []
        before = {number: signal.signal(number, self._stop) for number in _STOP_SIGNALS}
        try:
            for name, command in self._commands.items():
                self._children[name] = _start(command)
            self._watch(is_ready, on_ready)
        finally:
            overdue = self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        if overdue:
            raise TriptychError(f"{', '.join(overdue)} did not stop in time: killed")
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_immediate = self._signal is not None
        self._signal = number
        self._wake.set()

    def _watch(self, is_ready: Callable[[], bool], on_ready: Callable[[], None]) -> None:
        announced = False
        while not self._wake.wait(POLL_S):
            for name, child in self._children.items():
                if child.poll() is not None:
                    raise TriptychError(
                        f"{name} ended ({_exit_reason(child.returncode)}); stopped all"
                    )
            if not announced and is_ready():
                announced = True
                on_ready()

    def _end_all(self) -> list[str]:
        """In reverse order of their start, since later children depend on earlier ones.

        Returns:
            Those that were killed because they did not stop in time.
        """
        overdue = []
        for name, child in reversed(self._children.items()):
            child.terminate()
            deadline, is_repeated = time.monotonic() + STOP_TIMEOUT_S, False
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
                if self._is_immediate and not is_repeated:
                    child.terminate()
                    deadline, is_repeated = time.monotonic() + IMMEDIATE_STOP_TIMEOUT_S, True
            if child.poll() is None and not is_repeated:
                overdue.append(name)
                child.send_signal(signal.SIGUSR2)  # it writes where its threads are
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_STACKS_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the child, or its remaining processes
            child.wait()
        return overdue


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    """SIGTERM when the parent ends, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _exit_reason(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
