"""A worker as its supervisor sees it, and how it is started.

The worker's standard input brings one message, then commands of one byte. Its end means that the
supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path

from serving.gateway.server.shared_counts import Field, Segment
from serving.processes.launcher import module_command
from serving.processes.supervision import STACKS_S, STOP_SIGNALS, exit_reason
from serving.settings.gateway_settings import GatewaySettings

DRAIN = b"d"
"""Let running requests finish, then end."""
ABORT = b"a"
"""End running requests now."""
_LENGTH_BYTES = 4
_KEYS_OF_BODIES = 1024
"""Whose large bodies arrive at one moment."""


@dataclass(frozen=True)
class RunFolder:
    """Files of one run of a gateway, closed to other users; they are removed at its end."""

    path: Path

    @property
    def counts(self) -> Path:
        """The workers' shared memory."""
        return self.path / "counts"

    @property
    def metrics(self) -> Path:
        """The workers' counters and histograms."""
        return self.path / "metrics"

    @property
    def downloads(self) -> Path:
        """Translated files until they are fetched."""
        return self.path / "downloads"

    def create(self) -> None:
        """Make the folders."""
        self.metrics.mkdir()
        self.downloads.mkdir()


@dataclass(frozen=True)
class Start:
    """The message to a new worker.

    Attributes:
        settings: Of the gateway.
        number: The worker's, from 0; the one that replaces it has the same.
        http_fd: Descriptor of the listening socket, which the worker inherits.
        grpc_port: Reserved by the supervisor for the workers.
        folder: Of this run.
    """

    settings: GatewaySettings
    number: int
    http_fd: int
    grpc_port: int
    folder: RunFolder

    def encode(self) -> bytes:
        """The message as it is sent."""
        content = pickle.dumps(self)
        return len(content).to_bytes(_LENGTH_BYTES) + content

    @staticmethod
    def read(descriptor: int) -> Start:
        """Read the message, and nothing beyond.

        Raises:
            EOFError: the supervisor has ended.
        """
        length = int.from_bytes(_exactly(descriptor, _LENGTH_BYTES))
        start = pickle.loads(_exactly(descriptor, length))
        assert isinstance(start, Start)
        return start


def segment_of(settings: GatewaySettings, folder: RunFolder) -> Segment:
    """The memory that the workers of a gateway share.

    A worker counts a request before it is refused, so that it has one key more than it admits; and
    bodies of requests that it has not admitted yet.
    """
    keys = settings.max_concurrent_requests + 1 + _KEYS_OF_BODIES
    return Segment(folder.counts, settings.workers, keys)


def _exactly(descriptor: int, length: int) -> bytes:
    content = b""
    while len(content) < length:
        part = os.read(descriptor, length - len(content))
        if not part:
            raise EOFError("the supervisor has ended")
        content += part
    return content


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
        worker.send(message.encode())
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

    async def await_end(self) -> str:
        """Wait for the end; the reason.

        What the worker had admitted is free then.
        """
        code = await self._process.wait()
        self._memory.clear(self.number)
        return exit_reason(code)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
