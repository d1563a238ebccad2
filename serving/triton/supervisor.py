"""The watch over a server: the blocking body of `triptych triton`, fit to be process 1."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from serving.errors import SetupError
from serving.triton import process as processes
from serving.triton.server import TritonServer
from serving.triton.settings import TritonSettings, program_from_environment

WATCH_PERIOD_S = 0.5
HEALTHY_AFTER_S = 60.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one started server serving: heals its models, restarts it, gives up in the end."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._restarts = 0
        self._started_at = time.monotonic()

    def run(self) -> NoReturn:
        """Watch until an exception ends it: a signal's, or this one.

        Raises:
            SetupError: the server could not be kept up.
        """
        while True:
            time.sleep(WATCH_PERIOD_S)
            self.check()
            if self._server.pid is not None:
                processes.reap(except_for=self._server.pid)

    def check(self) -> None:
        """Look once, and repair what is broken.

        Raises:
            SetupError: too many restarts without a healthy minute between them.
        """
        if time.monotonic() - self._started_at > HEALTHY_AFTER_S:
            self._restarts = 0
        if not self._server.is_alive:
            self._restart("tritonserver ended")
            return
        try:
            self._server.heal()
        except SetupError as error:
            self._restart(error.message)
            return
        if self._server.dead_stubs > self._server.settings.max_dead_stubs:
            self._restart(f"{self._server.dead_stubs} dead stubs hold shared memory")

    def _restart(self, reason: str) -> None:
        """Stop and start; a start that fails leaves a dead server, which is the next check's."""
        if self._restarts >= self._server.settings.max_restarts:
            raise SetupError(f"gave up after {self._restarts} restarts: {reason}")
        self._restarts += 1
        log.error("restarting Triton (%d): %s", self._restarts, reason)
        self._server.stop()
        try:
            self._server.start()
        except SetupError as error:
            log.error("Triton did not start: %s", error)
        self._started_at = time.monotonic()


def run_triton(
    repository: Path, host: str, http_port: int, grpc_port: int, metrics_port: int
) -> int:
    """Start Triton and keep it up until SIGTERM or SIGINT; the body of `triptych triton`.

    Call it from the main thread.

    Returns:
        0: the exit code after a wanted stop.

    Raises:
        SetupError: it does not start, or does not stay up.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, _stop)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each health request
    processes.adopt_orphans()
    settings = TritonSettings(
        repository, host, http_port, grpc_port, metrics_port, program_from_environment()
    )
    try:
        with TritonServer(settings) as server:
            Supervisor(server).run()
    except _Stopped:
        log.info("Triton stopped")
    finally:
        processes.end_children()
    return 0


class _Stopped(BaseException):
    """SIGTERM or SIGINT arrived: leave whatever is going on, a long start too."""


def _stop(number: int, frame: FrameType | None) -> None:
    for further in _STOP_SIGNALS:
        signal.signal(further, signal.SIG_IGN)  # stopping is bounded in time; let it finish
    raise _Stopped
