"""Processes: start a server that ends with us, list its children, end all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_TICK_S = 0.1
_PRIVATE_UMASK = 0o077
_FCHMOD = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}
"""The kernel's number of the architecture, and of `fchmod` on it."""

# Runs in the child between fork and exec; a `preexec_fn` would run Python in a copy of a process
# with threads. The parent is compared because it may have died before prctl was called.
#
# Files are created for this user alone. For regions in /dev/shm the umask is not enough: Boost,
# with which Triton creates them, calls `fchmod(0644)`. So a filter (seccomp(2)) makes `fchmod`
# succeed without an effect, in Triton and in the processes of its models.
_LAUNCHER = f"""
import ctypes, os, platform, signal, struct, sys
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.umask({_PRIVATE_UMASK})
LOAD, EQUAL, RETURN, ALLOW, NO_EFFECT = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
architecture, fchmod = {_FCHMOD}.get(platform.machine(), (0, 0))
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in (
    (LOAD, 0, 0, 4), (EQUAL, 0, 3, architecture), (LOAD, 0, 0, 0), (EQUAL, 0, 1, fchmod),
    (RETURN, 0, 0, NO_EFFECT), (RETURN, 0, 0, ALLOW))))
filter = ctypes.create_string_buffer(struct.pack("HP", 6, ctypes.addressof(program)))
words = [ctypes.c_ulong(n) for n in ({_PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0)]
if prctl(*words) or prctl({_PR_SET_SECCOMP}, 2, filter):
    print("W0000 no seccomp: other users can read Triton's shared memory,",
          os.strerror(ctypes.get_errno()), flush=True)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Child:
    """A child process as `/proc` shows it."""

    pid: int
    is_zombie: bool
    arguments: tuple[str, ...]
    """Empty for a zombie."""


def launch(
    command: list[str], environment: dict[str, str], inherited: tuple[int, ...]
) -> subprocess.Popen[str]:
    """Start a program in a session of its own that gets SIGTERM when the calling thread ends.

    Its own session keeps the terminal's Ctrl-C away from it: we decide the order of stopping.
    What it creates is closed to other users. stdout and stderr come as one pipe.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        pass_fds=inherited,
    )


def end(process: subprocess.Popen[str], is_over: Callable[[], bool]) -> None:
    """SIGTERM, then SIGKILL for the whole session; returns when every member is gone.

    Args:
        process: Leader of the session.
        is_over: Whether to stop waiting for it to exit by itself.
    """
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    while process.poll() is None and not is_over():
        await_end([process.pid], _TICK_S)
    deadline = time.monotonic() + 10
    while members := session_members(process.pid):
        kill_session(process.pid)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {members} of Triton's session survive SIGKILL")
        time.sleep(0.02)
    process.wait()


def kill_session(leader: int) -> None:
    """SIGKILL for every member, if there is any."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def kill(pid: int) -> None:
    """SIGKILL, which reaches stopped processes too."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def await_end(pids: Iterable[int], timeout_s: float) -> None:
    """Return when one of the processes has ended, or after the timeout."""
    with contextlib.ExitStack() as opened:
        ends = select.poll()
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            except OSError:  # a sandbox without pidfd: only the timeout applies
                continue
            opened.callback(os.close, descriptor)
            ends.register(descriptor, select.POLLIN)
        ends.poll(timeout_s * 1000)


def children(pid: int) -> list[Child]:
    """Direct children of a process, whichever of its threads made them.

    The supervisor asks several times a second. The kernel's own list costs a seventh of reading
    all processes, but may lack a child while a sibling ends, so all are read where one has ended.
    """
    try:
        return [_described(psutil.Process(child)) for child in _listed_children(pid)]
    except (OSError, psutil.NoSuchProcess):
        pass
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
                found.append(_described(child))
    return found


def _listed_children(pid: int) -> list[int]:
    """Raises OSError where the process has ended, or the kernel keeps no such list."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for each in threads for child in (each / "children").read_text().split()]


def _described(process: psutil.Process) -> Child:
    is_zombie = process.status() == psutil.STATUS_ZOMBIE
    return Child(process.pid, is_zombie, () if is_zombie else tuple(process.cmdline()))


def is_running_child(pid: int, parent: int) -> bool:
    """Whether a process is a child of another and no zombie; a few microseconds.

    Listing the children of a Triton with a dozen models, whose threads are hundreds, takes 20 ms.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False
    state, its_parent = stat.rpartition(")")[2].split()[:2]
    return state not in "ZX" and int(its_parent) == parent


def reap(except_for: int) -> None:
    """Collect the exit status of every dead child but one, whose Popen object collects its own.

    Only for a process that does nothing but supervise: it reaps every child.
    """
    try:  # called twice a second, and listing all processes takes milliseconds
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    except ChildProcessError:
        return
    for child in children(os.getpid()):
        if child.is_zombie and child.pid != except_for:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def end_children() -> None:
    """Kill every child, also one whose launch a signal interrupted; for supervisors, like `reap`.

    With `adopt_orphans`, grandchildren become children and are killed too.
    """
    while left := children(os.getpid()):
        for child in left:
            kill(child.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned grandchildren, so that `reap` sees them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def running_with(argument: str, one_of: Set[str]) -> list[int]:
    """Process ids of all processes that have this argument and one of those."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or ()
        if argument in arguments and not one_of.isdisjoint(arguments):
            found.append(process.pid)
    return found


def session_members(leader: int) -> list[int]:
    """Running members of a session; a zombie holds nothing but its process id."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # ended meanwhile
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members
