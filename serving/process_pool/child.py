"""A process that runs one function at a time for its parent, and ends with it.

`python -m serving.process_pool.child FD PARENT MEMORY SECONDS`: FD is a socket that brings pickled
functions and takes their outcomes.
"""

from __future__ import annotations

import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from serving.processes.launcher import end_with_parent
from triptych.garbage import without_collection

_PRELOADED = ("inference.processing.image", "serving.documents.passages")


def main(descriptor: int, parent: int, memory_bytes: int, processor_s: int) -> None:
    """Run what the parent sends, until it closes the connection.

    Args:
        descriptor: Of the socket.
        parent: Its process id.
        memory_bytes: Address space that work may take, beside that of the loaded modules.
        processor_s: Time of all cores that one piece of work may take.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    end_with_parent(parent, signal.SIGKILL)
    with without_collection():
        for name in _PRELOADED:
            import_module(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _address_space() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with Connection(descriptor) as connection:
        while True:
            try:
                function, arguments = connection.recv()
            except EOFError:
                return
            _limit_time(processor_s)
            outcome = _outcome(function, arguments)
            del function, arguments
            connection.send(outcome)
            del outcome


def _outcome(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[bool, Any]:
    """(True, result) or (False, exception)."""
    try:
        return True, function(*arguments)
    except MemoryError:
        return False, MemoryError()
    except Exception as error:  # for the parent
        error.__cause__ = error.__context__ = None
        error.add_note("".join(traceback.format_exception(error)))
        return False, error.with_traceback(None)


def _limit_time(processor_s: int) -> None:
    """The process is killed by SIGXCPU that many seconds from now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soon = int(used.ru_utime + used.ru_stime) + processor_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soon, most))


def _address_space() -> int:
    """Bytes of address space that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
