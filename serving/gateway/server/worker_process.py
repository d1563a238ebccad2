"""A worker as its supervisor sees it: a child process, a pipe to it, and its slot's heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process

from serving.gateway.server.launch_workers import Start
from serving.gateway.server.shared_memory import Field, Segment
from serving.processes.launcher import module_command
from serving.processes.supervision import STACKS_S, STOP_SIGNALS, exit_reason

_PROGRAM = module_command("serving.gateway.server.worker")
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client reads the folder of its multiprocess mode."""


class WorkerProcess:
    """A running worker.

    Args:
        process: The child.
        number: The worker's, from 0.
    """

    def __init__(self, process: Process, memory: Segment, number: int) -> None:
        self._process = process
        self._memory = memory
        self.number = number

    @staticmethod
    async def start(message: Start, memory: Segment) -> WorkerProcess:
        """Start a worker in a fresh interpreter, which has signals blocked until it serves."""
        environment = os.environ | {_METRICS_FOLDER: str(message.folder.metrics)}
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process = await asyncio.create_subprocess_exec(
                *_PROGRAM, stdin=PIPE, pass_fds=(message.http_fd,), env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        worker = WorkerProcess(process, memory, message.number)
        worker.send(message.encoded())
        return worker

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def beats(self) -> int:
        """Grows while the worker's event loop runs; 0 until it serves."""
        return self._memory.read(self.number, Field.BEATS)

    def send(self, content: bytes) -> None:
        """Send a command; one that has ended receives none."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(content)

    def write_stacks(self) -> None:
        """Have the worker write where its threads are; not while it starts, when that ends it."""
        if self.beats:
            self._signal(signal.SIGUSR2)

    async def kill(self) -> None:
        """End the worker at once, after it had the time to write where its threads are."""
        self.write_stacks()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STACKS_S)
        self._signal(signal.SIGKILL)

    async def ended(self) -> str:
        """Wait for the end; the reason.

        What the worker had admitted is free then.
        """
        code = await self._process.wait()
        self._memory.clear(self.number)
        return exit_reason(code)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
