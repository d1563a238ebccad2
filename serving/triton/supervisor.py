"""Supervision of a Triton server: the blocking body of `triptych triton`, usable as process 1."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from inference.errors import SetupError
from serving.liveness.stall_detector import StallDetector
from serving.logs import configure_logs
from serving.processes.supervision import (
    STOP_SIGNALS,
    adopt_orphans,
    back_off_s,
    end_children,
    reap,
)
from serving.settings.triton_settings import TritonSettings
from serving.triton.control import ServerStatus
from serving.triton.control_socket import ControlSocket
from serving.triton.lifetime import await_orphan
from serving.triton.server import TritonServer
from serving.triton.version_control import VersionControl

WATCH_PERIOD_S = 0.5
REFRESH_PERIOD_S = 2.0
"""Between two readings of the repository."""
HEALTHY_AFTER_S = 60.0
MAX_FAILED_STARTS = 5
"""In a row, before giving up; a server that was ready is restarted without a limit."""
MAX_DEAD_STUBS = 128
"""Restart beyond so many: a stub that died keeps its series, and one with sequences threads and a
file in Triton."""
_CHEAP_DEAD_STUBS = 32
"""So many are healed whatever memory they hold until it is freed; with more of them that is at most
a quarter of all shared memory. A server that has more is restarted when it is idle."""
IDLE_BEFORE_RESTART_S = 60.0
"""Without a request."""
_CANARY_STEPS = 20
"""Steps that a gateway's canaries may take while a server is idle; `/ready` sends one in 10 s."""
_LONGEST_GAP_S = 5.0
"""A longer time between two checks means that this process was suspended itself, or loaded models;
a check of a server that does not respond takes less than two seconds."""
_LONGEST_BACK_OFF_S = 10.0

log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one started server serving: heals its models, restarts it.

    A server that was ready is restarted however often it ends, since a request may have ended it:
    at once, then after 1, 2, 4, … 10 seconds, until it has been healthy for a minute. A server that
    does not start is given up after `MAX_FAILED_STARTS` attempts in a row.

    It alone decides which version of each bundle is served; everything else follows Triton.

    Args:
        server: Started.
        commands: Where commands arrive; None: there are none.
        clock: Seconds.
    """

    def __init__(
        self,
        server: TritonServer,
        commands: ControlSocket | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._commands = commands
        self._versions = VersionControl(server, clock)
        self._refreshed_s = -math.inf
        self._clock = clock
        self._restarts = 0
        self._failed_starts = 0
        self._start_at_s: float | None = None
        self._steps: dict[str, float] = {}
        self._started_s = self._busy_s = clock()
        self._reset()

    def run(self) -> NoReturn:
        """Check the server until an exception ends it: a signal handler's, or this one.

        Raises:
            SetupError: the server could not be kept up.
        """
        while True:
            self._server.await_loss(WATCH_PERIOD_S)
            self.check()
            if self._server.pid is not None:
                reap(except_for=self._server.pid)

    def check(self) -> None:
        """Check once, and repair what is broken.

        Raises:
            SetupError: too many starts in a row have failed.
        """
        server, settings = self._server, self._server.settings
        if not server.is_alive:
            self._restart_ended()
            return
        if self._clock() - self._started_s > HEALTHY_AFTER_S:
            self._restarts = 0
        status = server.status()
        self._stalls.update(status.engines if status else None)
        if status is None:  # further calls would wait, too
            self._busy_s = self._clock()
            if self._stalls.unresponsive_s > settings.stuck_after:
                self._restart("tritonserver does not respond")
        elif server.is_missing_stubs and self._must_free_memory():
            self._restart(f"{server.dead_stubs} processes of models died, and one more")
        else:
            self._heal()
            if server.is_alive:
                self._check_versions()
            if server.is_alive:
                self._check_stalls(status)

    def _must_free_memory(self) -> bool:
        """Whether only a restart gives back enough of what dead stubs hold."""
        dead = self._server.dead_stubs
        if not _CHEAP_DEAD_STUBS <= dead < MAX_DEAD_STUBS:
            return dead >= MAX_DEAD_STUBS
        held, total = self._server.shared_memory()
        return held > total // 4

    def _heal(self) -> None:
        try:
            self._server.heal()
        except SetupError as error:
            log.error("healing failed: %s", error)
            # Without a dead process the bundle itself is at fault: a restart would not help.
            if self._server.is_alive and self._server.dead_stubs:
                self._restart(error.message)

    def _check_versions(self) -> None:
        """Run commands, and load what has been published."""
        if self._commands is not None:
            self._commands.run_pending(self._versions.run)
        if self._clock() - self._refreshed_s >= REFRESH_PERIOD_S:
            self._refreshed_s = self._clock()
            if self._commands is not None and self._commands.take_over():
                log.info("the repository's other supervisor has ended: this one is the first now")
                self._server.keep_record()
            self._versions.refresh()

    def _check_stalls(self, status: ServerStatus) -> None:
        """Kill stalled models; restart an idle server with many dead stubs."""
        stuck_after_s = self._server.settings.stuck_after
        for model, stalled_s in self._stalls.stalled_s.items():
            stalled = {pid for pid, seconds in stalled_s.items() if seconds > stuck_after_s}
            for pid in self._server.kill_stubs(model, stalled) if stalled else ():
                log.error(
                    "model %s: no heartbeat for %.0f s; killed process %d",
                    model,
                    stalled_s[pid],
                    pid,
                )
        if not status.is_idle or self._has_worked(status):
            self._steps = status.steps
            self._busy_s = self._clock()
        is_long_idle = self._clock() - self._busy_s > IDLE_BEFORE_RESTART_S
        if self._server.dead_stubs >= _CHEAP_DEAD_STUBS and is_long_idle:
            self._restart(
                f"{self._server.dead_stubs} processes of models died, and the server is idle"
            )

    def _has_worked(self, status: ServerStatus) -> bool:
        """Whether more than canaries has run since the server was last busy."""
        steps = status.steps
        return any(abs(steps[model] - self._steps.get(model, 0)) > _CANARY_STEPS for model in steps)

    def _restart_ended(self) -> None:
        """Start a server that has ended again, at once or when its back-off is over."""
        if self._start_at_s is None:
            log.error("tritonserver ended: %s", self._server.last_output)
            self._server.stop(at_once=True)  # its models' processes
            self._start_at_s = self._clock() + back_off_s(self._restarts, 1.0, _LONGEST_BACK_OFF_S)
        if self._clock() >= self._start_at_s:
            self._start("it ended")

    def _restart(self, reason: str) -> None:
        self._server.stop(at_once=True)
        self._start(reason)

    def _start(self, reason: str) -> None:
        """Start the stopped server; if that fails the next check finds that it is not alive."""
        self._restarts += 1
        log.error("restarting Triton (%d): %s", self._restarts, reason)
        try:
            self._server.start(strict=False)
        except SetupError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise SetupError(
                    f"gave up: Triton did not start {self._failed_starts} times in a row: "
                    f"{error.message}"
                ) from error
            log.error("Triton did not start: %s", error)
        else:
            self._failed_starts = 0
        self._start_at_s = None
        self._reset()

    def _reset(self) -> None:
        """Discard what was observed before the server's start."""
        self._stalls = StallDetector(self._clock, _LONGEST_GAP_S)
        self._steps = {}
        self._started_s = self._busy_s = self._clock()


def run_triton(settings: TritonSettings) -> int:
    """Start Triton and keep it up until SIGTERM or SIGINT; the body of `triptych triton`.

    Call it from the main thread. Requests in flight get `graceful_termination_timeout`; a second
    signal ends them.

    Returns:
        0: the exit code after a signal.

    Raises:
        SetupError: it does not start, or does not stay up.
    """
    configure_logs(as_json=settings.json_output)
    settings.served_device.check()
    server = TritonServer(settings)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: _stop(server))
    adopt_orphans()
    try:
        try:
            with contextlib.closing(ControlSocket(settings.repository)) as commands:
                if commands.is_first:
                    await_orphan(settings)
                else:
                    server.keep_no_record()
                with server:
                    Supervisor(server, commands).run()
        finally:
            end_children()
    except _Stopped:
        server.stop()  # the signal may have come while that, or the next, was done
        end_children()
        log.info("Triton stopped")
    return 0


class _Stopped(BaseException):
    """SIGTERM or SIGINT arrived: abort what is in progress, a long start too."""


def _stop(server: TritonServer) -> None:
    for further in STOP_SIGNALS:  # stopping is bounded in time: do not interrupt it
        signal.signal(further, lambda *_: server.stop_waiting())
    raise _Stopped
