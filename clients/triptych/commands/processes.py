"""Children that live and die together: one ends, all end; we end, all end."""

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
HASTE_S = 5.0
"""For a child that has been asked twice."""
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


class Processes:
    """Commands run side by side until a signal, or until one of them ends.

    Each child leads a session of its own, so that Ctrl-C reaches this process alone, which stops
    them in order, and so that whatever a child leaves behind can be found and ended.

    Args:
        commands: Program and arguments by the name that people know the child under.
    """

    def __init__(self, commands: dict[str, Sequence[str]]) -> None:
        self._commands = commands
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._signal: int | None = None
        self._in_haste = False
        self._wake = threading.Event()

    def run(self, is_ready: Callable[[], bool], on_ready: Callable[[], None]) -> int:
        """Start all, call `on_ready` once `is_ready`, stop all on SIGINT or SIGTERM.

        A second signal is passed on, and children that take their time even then are killed.

        Returns:
            0 after SIGTERM.

        Raises:
            KeyboardInterrupt: After SIGINT, when all have ended.
            TriptychError: A child ended by itself; the others have ended too.
        """
        before = {number: signal.signal(number, self._stop) for number in _STOP_SIGNALS}
        try:
            for name, command in self._commands.items():
                self._children[name] = _start(command)
            self._watch(is_ready, on_ready)
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._in_haste = self._signal is not None
        self._signal = number
        self._wake.set()

    def _watch(self, is_ready: Callable[[], bool], on_ready: Callable[[], None]) -> None:
        announced = False
        while not self._wake.wait(POLL_S):
            for name, child in self._children.items():
                if child.poll() is not None:
                    raise TriptychError(f"{name} ended ({_fate(child.returncode)}); stopped all")
            if not announced and is_ready():
                announced = True
                on_ready()

    def _end_all(self) -> None:
        """One after the other, the last started first, which leans on those before it."""
        for child in reversed(self._children.values()):
            child.terminate()
            deadline, is_asked_twice = time.monotonic() + STOP_TIMEOUT_S, False
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
                if self._in_haste and not is_asked_twice:
                    child.terminate()
                    deadline, is_asked_twice = time.monotonic() + HASTE_S, True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the child, or what it left behind
            child.wait()


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)


def _die_with_parent() -> None:
    """Ask Linux for SIGTERM when our parent is gone, even by SIGKILL; elsewhere a no-op."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _fate(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
