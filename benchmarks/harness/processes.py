"""CPU seconds of this process and of its descendants, by the part of the service that they are."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from serving.processes.process_table import children

CLIENT = "client"
"""This process; the engine is in it where it runs in process."""
OTHER = "other"
"""Processes that are not ours."""
_PARTS = {"python_backend_stub": "engine", "tritonserver": "triton"}
_COMMANDS = {"gateway": "gateway", "triton": "supervisor", "serve": "supervisor"}


class Processes:
    """The processes that run at construction: listing them takes longer than what is measured."""

    def __init__(self) -> None:
        self._parts = {os.getpid(): CLIENT}
        waiting = children(os.getpid())
        while waiting:
            pid, arguments = waiting.popitem()
            self._parts[pid] = part_of(arguments)
            waiting |= children(pid)

    def cpu_seconds(self) -> dict[str, float]:
        """By part; a part that has several processes has the sum."""
        found = dict.fromkeys(self._parts.values(), 0.0)
        for pid, part in self._parts.items():
            found[part] += _seconds(pid)
        return found


def part_of(arguments: tuple[str, ...]) -> str:
    """The part of `triptych serve` that a process belongs to."""
    program = Path(arguments[0]).name if arguments else ""
    for name, part in _PARTS.items():
        if name in program:
            return part
    return next((_COMMANDS[word] for word in arguments if word in _COMMANDS), OTHER)


def _seconds(pid: int) -> float:
    """User and system time; 0 for a process that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
