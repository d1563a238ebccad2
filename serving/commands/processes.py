"""Child processes run as a group: when one ends, or this process does, all are stopped."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from serving.processes.launcher import launch_command
from serving.processes.supervision import STOP_SIGNALS, end_session, exit_reason
from triptych.errors import TriptychError

POLL_S = 0.1
STOP_TIMEOUT_S = 60.0
IMMEDIATE_STOP_TIMEOUT_S = 5.0
"""After a second SIGTERM."""


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
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        try:
            for name, command in self._commands.items():
                self._children[name] = subprocess.Popen(
                    launch_command(command), start_new_session=True
                )
            self._watch(is_ready, on_ready)
        finally:
            # Later children depend on earlier ones.
            for name, child in reversed(self._children.items()):
                if not self._end(child) and not self._is_immediate:
                    overdue.append(name)
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
                        f"{name} ended ({exit_reason(child.returncode)}); stopped all"
                    )
            if not announced and is_ready():
                announced = True
                on_ready()

    def _end(self, child: subprocess.Popen[bytes]) -> bool:
        """End a child and what it started; whether it exited in time."""
        began_s, is_repeated = time.monotonic(), False
        deadline_s = began_s + STOP_TIMEOUT_S

        def is_over() -> bool:
            nonlocal deadline_s, is_repeated
            is_apart = time.monotonic() > began_s + POLL_S  # two at once would arrive as one
            if self._is_immediate and not is_repeated and is_apart:
                child.terminate()
                deadline_s, is_repeated = time.monotonic() + IMMEDIATE_STOP_TIMEOUT_S, True
            return time.monotonic() > deadline_s

        return end_session(child, is_over, writes_stacks=True)
