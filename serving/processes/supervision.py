"""What supervisors do with processes: wait for their end, end them, decide when to start them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from serving.processes.process_table import children, session_members

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STACKS_S = 1.0
"""Time in which a process writes where its threads are (SIGUSR2), before it is killed."""
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_TICK_S = 0.1
_KILLED_S = 10.0
_MOST_DOUBLINGS = 60
"""A process may end a thousand times in a row, and 2.0 ** 1024 is an error."""


def start_connected(
    program: Sequence[str], *arguments: object, **options: Any
) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a program with `FD PARENT ARGUMENTS…`; the connection to its socket FD, and the child.

    It gets no other descriptor, and ends with the thread that starts it (`end_with_parent`).

    Args:
        options: Of `subprocess.Popen`.
    """
    connection, theirs = Pipe()
    with theirs:
        descriptor = theirs.fileno()
        words = map(str, (descriptor, os.getpid(), *arguments))
        child = subprocess.Popen(
            [*program, *words],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            **options,
        )
    return connection, child


def exit_reason(code: int | None) -> str:
    """Why a process ended, in words; its exit code is negative where a signal killed it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def back_off_s(ends: int, first_s: float, longest_s: float) -> float:
    """Seconds before a process is started again, twice as many after each further end.

    Args:
        ends: In a row; 0: no delay.
        first_s: After the first.
        longest_s: At most.
    """
    return min(longest_s, first_s * 2.0 ** min(ends - 1, _MOST_DOUBLINGS)) if ends else 0.0


@contextlib.contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call a function on the running event loop for each signal, until the end of the block.

    Signals that were blocked arrive from then on. After the block they are ignored: the program
    ends, and a further one must not cut what it still removes.
    """
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
        for number in handlers:
            loop.remove_signal_handler(number)  # which makes it end the process
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)


def end_session(
    leader: subprocess.Popen[Any], is_over: Callable[[], bool], *, writes_stacks: bool = False
) -> bool:
    """SIGTERM, then SIGKILL for the whole session; returns when every member is gone.

    Args:
        leader: Of the session.
        is_over: Whether to stop waiting for it to exit; called ten times a second.
        writes_stacks: Whether it writes where its threads are before it is killed.

    Returns:
        Whether it exited before it was killed.

    Raises:
        RuntimeError: a process survives SIGKILL.
    """
    leader.terminate()
    while leader.poll() is None and not is_over():
        await_end([leader.pid], _TICK_S)
    has_exited = leader.poll() is not None
    if writes_stacks and not has_exited:
        leader.send_signal(signal.SIGUSR2)
        await_end([leader.pid], STACKS_S)
    deadline = time.monotonic() + _KILLED_S
    while members := session_members(leader.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {members} of a session survive SIGKILL")
        time.sleep(0.02)
    leader.wait()
    return has_exited


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


def reap(except_for: int) -> None:
    """Collect the exit status of every dead child but one, whose Popen object collects its own.

    Only for a process that does nothing but supervise: it reaps every child.
    """
    with contextlib.suppress(ChildProcessError):  # there is none
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid == except_for:
                return  # it is started again soon, and the others are collected then
            os.waitpid(dead.si_pid, os.WNOHANG)


def end_children() -> None:
    """Kill every child, also one whose launch a signal interrupted; for supervisors, like `reap`.

    With `adopt_orphans`, grandchildren become children and are killed too.
    """
    while left := children(os.getpid()):
        for pid in left:
            kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned grandchildren, so that `reap` sees them."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
