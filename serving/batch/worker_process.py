"""A worker as a process of this machine, which makes shards for its parent and ends with it.

`python -m serving.batch.worker_process FD PARENT FILE`: FD is a socket that brings shards, and
takes None when the model is open, then reports; or why it failed. FILE has the worker's arguments.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from serving.batch.shards import Shard
from serving.batch.worker import IN_PROGRESS, Report, Worker, error_line
from serving.processes.launcher import end_with_parent

_OUT_OF_MEMORY = Path("/proc/self/oom_score_adj")
"""Without memory the kernel ends a worker, which is started again, and not the driver."""


def main(descriptor: int, parent: int, given: Path) -> None:
    """Make what the parent sends, until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    end_with_parent(parent, signal.SIGKILL)
    with contextlib.suppress(OSError):
        _OUT_OF_MEMORY.write_text("1000")
    with Connection(descriptor) as connection:
        try:
            worker = Worker(*pickle.loads(given.read_bytes()))
        except Exception as error:  # the edge of the process: the driver ends the run with it
            connection.send(error_line(error))
            return
        connection.send(None)
        sending = threading.Lock()

        def make(shard: Shard) -> None:
            found: Report | str
            try:
                found = worker.make(shard)
            except Exception as error:  # the edge of the process, as above
                found = error_line(error)
            with sending:
                connection.send(found)

        # One more than are made at a time: a file takes milliseconds until it is on the disk.
        with ThreadPoolExecutor(IN_PROGRESS + 1) as threads, contextlib.suppress(EOFError):
            while True:
                threads.submit(make, connection.recv())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
