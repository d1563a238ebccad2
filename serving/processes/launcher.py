"""A program that becomes another one, which ends with the thread that started it.

It runs between fork and exec, in an interpreter of its own: a `preexec_fn` would run Python in a
copy of a process with threads. It is started by its path and needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Sequence

_SET_PARENT_DEATH_SIGNAL, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 22, 38  # prctl(2)
_FCHMOD = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}
"""The kernel's number of the architecture, and of `fchmod` on it."""


def module_command(module: str) -> tuple[str, ...]:
    """The command that runs a module of ours as a program.

    `-m` alone would import modules of the current folder before all others: a user's
    `types.py` would end the program, and another user's `inference.py` would run in it.
    """
    return (sys.executable, "-P", "-m", module)


def launch_command(command: Sequence[str], *, is_private: bool = False) -> list[str]:
    """The command that starts a program which gets SIGTERM when the calling thread ends.

    Args:
        command: Program, by its path, and arguments.
        is_private: Whether files that it creates are closed to other users.
    """
    launcher = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(is_private))]
    return [*launcher, *command]


def end_with_parent(parent: int, number: int) -> None:
    """Have this process get a signal when its parent's thread ends; exit if it has ended."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it ended before prctl was called
        sys.exit(1)


def _close_files_to_others() -> None:
    """Have files that this process and its descendants create be this user's alone.

    For regions in /dev/shm the umask is not enough: Boost, with which Triton creates them, calls
    `fchmod(0644)`. So a filter (seccomp(2)) makes `fchmod` succeed without an effect, in Triton and
    in the processes of its models.
    """
    os.umask(0o077)
    load, equal, result, allow, no_effect = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    architecture, fchmod = _FCHMOD.get(platform.machine(), (0, 0))
    lines = [(load, 0, 0, 4), (equal, 0, 3, architecture), (load, 0, 0, 0), (equal, 0, 1, fchmod)]
    lines += [(result, 0, 0, no_effect), (result, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    words = [ctypes.c_ulong(word) for word in (_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)]
    if prctl(*words) or prctl(_SET_SECCOMP, 2, program):
        reason = os.strerror(ctypes.get_errno())
        print("W0000 no seccomp: other users can read Triton's shared memory,", reason, flush=True)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGTERM)
    if sys.argv[2] == "1":
        _close_files_to_others()
    os.execvp(sys.argv[3], sys.argv[3:])
