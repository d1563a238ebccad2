"""The supervisor of a gateway's workers: starts them, replaces those that end, passes signals on.

It holds the addresses, so that a client never finds the port closed, and no connection waits for a
worker that has ended. It serves nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import signal
import socket
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from inference.errors import SetupError
from inference.process_limits import usable_cores
from serving.draining import await_drained
from serving.gateway.server.shared_counts import Field
from serving.gateway.server.worker_process import (
    ABORT,
    DRAIN,
    RunFolder,
    Start,
    WorkerProcess,
    segment_of,
)
from serving.logs import configure_logs
from serving.ports import listening, reserved
from serving.processes.supervision import STOP_SIGNALS, back_off_s, handle_signals
from serving.settings.gateway_settings import GatewaySettings

log = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0
"""A worker whose event loop stands still for so long is killed."""
STARTING_S = 120.0
"""A worker that does not serve after this time is killed."""
HEALTHY_S = 60.0
"""A worker that ran for so long is replaced at once; after shorter runs there is a delay."""
MOST_FAILURES = 5
"""Ends in a row without a healthy run, of every worker: then the supervisor ends, too."""
LONGEST_DELAY_S = 30.0
_FIRST_DELAY_S = 0.5
_OVERDUE_S = 30.0
"""After the grace period: workers that still run are killed."""
_POLL_S = 1.0
_STARTING_POLL_S = 0.05


def run_workers(settings: GatewaySettings) -> int:
    """Run the workers until SIGTERM or SIGINT, and let requests finish.

    Returns:
        The exit code: 1 if the workers cannot start, or one had to be killed.
    """
    configure_logs(as_json=settings.json_output)
    cores = usable_cores()
    if settings.workers > cores:
        log.warning("%d workers share %d cores", settings.workers, cores)
    await_drained(settings.host, {"http": settings.http_port, "grpc": settings.grpc_port}, log.info)
    # None ends the process before its handlers are set: the folder would stay.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="triptych-gateway-") as folder,
            listening(settings.host, settings.http_port, "HTTP") as http_socket,
            reserved(settings.host, settings.grpc_port, "gRPC") as grpc_socket,
        ):
            supervisor = Supervisor(settings, RunFolder(Path(folder)), http_socket, grpc_socket)
            return asyncio.run(supervisor.run())
    except SetupError as error:
        log.error("cannot start: %s", error.message)
        return 1


class Supervisor:
    """Runs the workers of one gateway.

    Args:
        folder: Of this run; empty.
        http_socket: Listens.
        grpc_socket: Keeps the port.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        folder: RunFolder,
        http_socket: socket.socket,
        grpc_socket: socket.socket,
    ) -> None:
        folder.create()
        self._settings = settings
        self._folder = folder
        self._http_socket = http_socket
        self._grpc_port: int = grpc_socket.getsockname()[1]
        self._segment = segment_of(settings, folder)
        self._workers: dict[int, WorkerProcess] = {}
        """Those that run, by number."""
        self._failures = [0] * settings.workers
        """Ends of each worker in a row, without a healthy run."""
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Run until a signal has ended all workers.

        The first worker starts alone: what prevents it from starting is logged once.

        Returns:
            The exit code.
        """
        with self._signals():
            first = await self._start(0)
            if not await self._serves(first):
                return 0 if self._stopping.is_set() else 1  # the worker logged why
            overdue = asyncio.create_task(self._kill_overdue())
            try:
                others = range(1, self._settings.workers)
                await asyncio.gather(self._keep(0, first), *map(self._keep, others))
            finally:
                overdue.cancel()
        log.info("all workers have ended")
        return self._exit_code

    async def _start(self, number: int) -> WorkerProcess:
        message = Start(
            self._settings, number, self._http_socket.fileno(), self._grpc_port, self._folder
        )
        worker = self._workers[number] = await WorkerProcess.start(message, self._segment)
        if self._stopping.is_set():
            worker.send(DRAIN)
        return worker

    async def _serves(self, worker: WorkerProcess) -> bool:
        """Wait until a new worker serves; False if it ended before."""
        ended = asyncio.create_task(self._watch(worker))
        while not ended.done() and not worker.beats:
            await asyncio.wait((ended,), timeout=_STARTING_POLL_S)
        if ended.done():
            return False
        ended.cancel()
        return True

    async def _keep(self, number: int, worker: WorkerProcess | None = None) -> None:
        """Have a worker of this number run until the end.

        Args:
            number: From 0.
            worker: One that runs already.
        """
        while not self._stopping.is_set() or worker is not None:
            worker = worker or await self._start(number)
            started_s = time.monotonic()
            reason = await self._watch(worker)
            if not self._stopping.is_set():
                await self._replace(worker, reason, time.monotonic() - started_s)
            worker = None

    async def _watch(self, worker: WorkerProcess) -> str:
        """Wait for the end of a worker, and kill it if its event loop stands still; the reason."""
        ended = asyncio.create_task(worker.await_end())
        before, still_s = 0, 0.0
        try:
            while not (await asyncio.wait((ended,), timeout=_POLL_S))[0]:
                beats = worker.beats
                still_s = still_s + _POLL_S if beats == before else 0.0
                before = beats
                if still_s > (STUCK_AFTER_S if beats else STARTING_S):
                    log.error("worker does not respond: killing it", extra=_fields(worker))
                    await worker.kill()
        except asyncio.CancelledError:
            ended.cancel()
            raise
        self._workers.pop(worker.number, None)
        return ended.result()

    async def _replace(self, worker: WorkerProcess, reason: str, lived_s: float) -> None:
        """Wait until a worker that has ended may be started again; give up if none serves."""
        number = worker.number
        self._failures[number] = failures = 1 if lived_s > HEALTHY_S else self._failures[number] + 1
        delay_s = back_off_s(failures, _FIRST_DELAY_S, LONGEST_DELAY_S)
        self._segment.words[self._segment.place(number, Field.RESTARTS)] += 1
        log.error(
            "worker ended (%s), %d times in a row: starting it again in %g s",
            *(reason, failures, delay_s),
            extra=_fields(worker),
        )
        if min(self._failures) >= MOST_FAILURES and not any(w.beats for w in self._running):
            log.error("no worker serves: giving up; the lines above have the reasons")
            self._exit_code = 1
            self._drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)

    @property
    def _running(self) -> list[WorkerProcess]:
        return list(self._workers.values())

    def _drain(self) -> None:
        self._stopping.set()
        for worker in self._running:
            worker.send(DRAIN)

    async def _kill_overdue(self) -> None:
        """Kill the workers that have not ended long after the grace period."""
        await self._stopping.wait()
        await asyncio.sleep(self._settings.graceful_termination_timeout + _OVERDUE_S)
        for worker in self._running:
            log.error("worker has not ended in time: killing it", extra=_fields(worker))
            self._exit_code = 1
            await worker.kill()

    def _signals(self) -> AbstractContextManager[None]:
        """SIGTERM and SIGINT drain, a second one ends requests; SIGUSR2 writes all stacks."""

        def on_stop() -> None:
            if not self._stopping.is_set():
                log.info("draining all workers")
                self._drain()
                return
            for worker in self._running:
                worker.send(ABORT)

        def on_stacks() -> None:
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback(sys.__stderr__)
            for worker in self._running:
                worker.write_stacks()

        return handle_signals({**dict.fromkeys(STOP_SIGNALS, on_stop), signal.SIGUSR2: on_stacks})


def _fields(worker: WorkerProcess) -> dict[str, int]:
    return {"worker": worker.number + 1, "pid": worker.pid}
