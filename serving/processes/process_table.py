"""Processes as the kernel lists them in `/proc`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

_ENDED = "ZX"
"""States of a process that holds nothing but its process id."""


class _Stat(NamedTuple):
    """Fields of `/proc/PID/stat`, proc(5)."""

    state: str
    parent: int
    session: int


def children(pid: int) -> dict[int, tuple[str, ...]]:
    """Direct children of a process with their arguments; a zombie has none."""
    return {child: arguments_of(child) for child, stat in _processes() if stat.parent == pid}


def is_running_child(pid: int, parent: int) -> bool:
    """Whether a process is a child of another and has not ended; a few microseconds."""
    stat = _stat(pid)
    return stat is not None and stat.state not in _ENDED and stat.parent == parent


def session_members(leader: int) -> list[int]:
    """Running members of a session."""
    return [
        pid for pid, stat in _processes() if stat.session == leader and stat.state not in _ENDED
    ]


def running_with(argument: str, one_of: Set[str]) -> list[int]:
    """Process ids of all processes that have this argument and one of those."""
    arguments = {pid: arguments_of(pid) for pid, _ in _processes()}
    return [pid for pid, own in arguments.items() if argument in own and not one_of.isdisjoint(own)]


def _processes() -> Iterator[tuple[int, _Stat]]:
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        if stat := _stat(pid):
            yield pid, stat


def _stat(pid: int) -> _Stat | None:
    """The process's fields; None if it has ended, perhaps while they are read."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, parent, _, session = _read(pid, "stat").rpartition(")")[2].split()[:4]
        return _Stat(state, int(parent), int(session))
    return None


def arguments_of(pid: int) -> tuple[str, ...]:
    """A process's program and arguments; empty if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return tuple(_read(pid, "cmdline").split("\0")[:-1])
    return ()


def _read(pid: int, file: str) -> str:
    return os.fsdecode(Path(f"/proc/{pid}/{file}").read_bytes())
