"""The watch over a server: the blocking body of `triptych triton`, fit to be process 1."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from serving.errors import SetupError
from serving.logs import configure_logs
from serving.triton import process as processes
from serving.triton.control import Condition
from serving.triton.pulse import Pulse
from serving.triton.server import TritonServer
from serving.triton.settings import TritonSettings

WATCH_PERIOD_S = 0.5
HEALTHY_AFTER_S = 60.0
_CANARIES = 20
"""Steps that a gateway's canaries may take while a server is idle; `/ready` sends one in 10 s."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one started server serving: heals its models, restarts it, gives up in the end.

    Args:
        server: Started.
        clock: Seconds.
    """

    def __init__(self, server: TritonServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._restarts = 0
        self._work: dict[str, float] = {}
        self._began()

    def run(self) -> NoReturn:
        """Watch until an exception ends it: a signal's, or this one.

        Raises:
            SetupError: the server could not be kept up.
        """
        while True:
            self._server.await_loss(WATCH_PERIOD_S)
            self.check()
            if self._server.pid is not None:
                processes.reap(except_for=self._server.pid)

    def check(self) -> None:
        """Look once, and repair what is broken.

        Raises:
            SetupError: too many restarts without a healthy minute between them.
        """
        if self._clock() - self._started_s > HEALTHY_AFTER_S:
            self._restarts = 0
        server, settings = self._server, self._server.settings
        if not server.is_alive:
            log.error("tritonserver ended: %s", server.last_words)
            self._restart("tritonserver ended")
        elif server.has_lost_stubs and server.dead_stubs >= settings.max_dead_stubs:
            self._restart(f"{server.dead_stubs} dead stubs hold shared memory, and one more died")
        else:
            self._heal()
            self._look()

    def _heal(self) -> None:
        try:
            self._server.heal()
        except SetupError as error:
            log.error("healing failed: %s; %s", error, self._server.last_words)
            self._restart(error.message)

    def _look(self) -> None:
        """Ask how the server does: end what stands still, renew what is worn when nobody asks."""
        condition = self._server.condition()
        for model in self._pulse.look(condition.engines if condition else None):
            stuck_s = self._server.settings.stuck_after_s
            log.error("model %s has had no heartbeat for %g s; ending its process", model, stuck_s)
            self._server.kill_stubs(model)
        if self._pulse.is_silent:
            self._restart("tritonserver does not answer")
            return
        if condition is None or not condition.is_idle or self._has_worked(condition):
            self._work = condition.work if condition else {}
            self._busy_s = self._clock()
        is_long_idle = self._clock() - self._busy_s > self._server.settings.idle_before_restart_s
        if self._server.dead_stubs and is_long_idle:
            self._restart(f"{self._server.dead_stubs} dead stubs hold shared memory, all is idle")

    def _has_worked(self, condition: Condition) -> bool:
        """Whether somebody else than canaries has asked since the server was last seen busy."""
        work = condition.work
        return any(abs(work[model] - self._work.get(model, 0.0)) > _CANARIES for model in work)

    def _restart(self, reason: str) -> None:
        """Stop and start; a start that fails leaves a dead server, which is the next check's."""
        if self._restarts >= self._server.settings.max_restarts:
            raise SetupError(f"gave up after {self._restarts} restarts: {reason}")
        self._restarts += 1
        log.error("restarting Triton (%d): %s", self._restarts, reason)
        self._server.stop(at_once=True)
        try:
            self._server.start()
        except SetupError as error:
            log.error("Triton did not start: %s", error)
        self._began()

    def _began(self) -> None:
        """Forget what was seen of the server before it started."""
        self._pulse = Pulse(self._server.settings.stuck_after_s, self._clock)
        self._work = {}
        self._started_s = self._busy_s = self._clock()


def run_triton(settings: TritonSettings, *, json_output: bool = False) -> int:
    """Start Triton and keep it up until SIGTERM or SIGINT; the body of `triptych triton`.

    Call it from the main thread. Requests in flight get `stop_timeout_s`; a second signal ends
    them.

    Returns:
        0: the exit code after a wanted stop.

    Raises:
        SetupError: it does not start, or does not stay up.
    """
    configure_logs(as_json=json_output)
    server = TritonServer(settings)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: _stop(server))
    processes.adopt_orphans()
    try:
        with server:
            Supervisor(server).run()
    except _Stopped:
        log.info("Triton stopped")
    finally:
        processes.end_children()
    return 0


class _Stopped(BaseException):
    """SIGTERM or SIGINT arrived: leave whatever is going on, a long start too."""


def _stop(server: TritonServer) -> None:
    for further in _STOP_SIGNALS:  # stopping is bounded in time; let it finish
        signal.signal(further, lambda *_: server.hurry())
    raise _Stopped
