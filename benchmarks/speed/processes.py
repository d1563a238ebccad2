"""Who used the processors: CPU seconds of this process and of those it started, by their parts."""

from __future__ import annotations

import os
from pathlib import Path

from serving.triton.process import Child, children

CLIENT = "client"
"""This process; the engine is in it where it runs in process."""
_PARTS = {"python_backend_stub": "engine", "tritonserver": "triton"}
_COMMANDS = {"gateway": "gateway", "triton": "keeper", "serve": "keeper"}
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


class Processes:
    """Those that run when this is made: looking for them takes longer than what is measured."""

    def __init__(self) -> None:
        self._parts = {os.getpid(): CLIENT}
        waiting = children(os.getpid())
        while waiting:
            child = waiting.pop()
            self._parts[child.pid] = part_of(child)
            waiting += children(child.pid)

    def cpu_seconds(self) -> dict[str, float]:
        """By part; a part that has several processes has the sum."""
        found = dict.fromkeys(self._parts.values(), 0.0)
        for pid, part in self._parts.items():
            found[part] += _seconds(pid)
        return found


def part_of(child: Child) -> str:
    """What a process of `triptych serve` is there for."""
    program = Path(child.arguments[0]).name if child.arguments else ""
    for name, part in _PARTS.items():
        if name in program:
            return part
    return next((_COMMANDS[word] for word in child.arguments if word in _COMMANDS), "other")


def _seconds(pid: int) -> float:
    """User and system time; 0 for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICKS_S
