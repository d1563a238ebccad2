"""Locust's users: closed-loop ones that wait for responses, and a Poisson source that does not.

`make load` runs it; README.md describes the profiles. Settings come from the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent.pool import Group
from geventhttpclient import HTTPClient
from locust import FastHttpUser, User, tag, task

from benchmarks.harness.closed_loop import poisson_arrivals
from benchmarks.load.payloads import LoadSettings, Payload, Payloads, failure

SETTINGS = LoadSettings.from_environment()
PAYLOADS = Payloads(SETTINGS.tasks, SETTINGS.seed, SETTINGS.images, SETTINGS.models)
# Locust's timers start from the time that the event loop read before the payloads were made; a run
# shorter than that would end at once.
gevent.get_hub().loop.update_now()
HEADERS = {"content-type": "application/json"}
TIMEOUT_S = 60.0
MOST_CONNECTIONS = 4096


class ClosedLoopUser(FastHttpUser):
    """Sends its next request after a response: as many requests in flight as there are users."""

    abstract = SETTINGS.profile != "closed"
    host = SETTINGS.url
    network_timeout = TIMEOUT_S

    def _request(self, name: str) -> None:
        payload = PAYLOADS.draw(name)
        with self.client.post(
            payload.path, data=payload.body, headers=HEADERS, catch_response=True
        ) as response:
            reason = failure(name, response.status_code, response.content or b"")
            if reason is not None:
                response.failure(reason)

    @staticmethod
    def _task(name: str) -> Callable[[ClosedLoopUser], None]:
        """Locust's task for a route."""

        def request(user: ClosedLoopUser) -> None:
            user._request(name)

        return tag(name)(task(request))


ClosedLoopUser.tasks = [ClosedLoopUser._task(name) for name in SETTINGS.tasks]


class PoissonSource(User):
    """All arrivals of an open-loop run, each in a greenlet of its own.

    A response time is counted from the time at which the request was scheduled, so a late
    generator or a full pool does not improve the result. Requests without a response at the end
    count as failures, with the time that they have waited.
    """

    abstract = SETTINGS.profile != "poisson"
    host = SETTINGS.url
    fixed_count = 1

    def on_start(self) -> None:
        """Open the pool and start the clock."""
        self._http = HTTPClient.from_url(
            self.host,
            concurrency=MOST_CONNECTIONS,
            connection_timeout=TIMEOUT_S,
            network_timeout=TIMEOUT_S,
        )
        self._in_flight = Group()
        self._waiting: dict[object, tuple[Payload, float]] = {}
        self._arrivals = poisson_arrivals(SETTINGS.rate, SETTINGS.seed)
        self._started = time.perf_counter()

    @task
    def arrive(self) -> None:
        """Send the next request at its time; locust ends a run between two of these."""
        scheduled = self._started + next(self._arrivals)
        gevent.sleep(max(scheduled - time.perf_counter(), 0))
        self._in_flight.spawn(self._send, PAYLOADS.draw(), scheduled)

    def on_stop(self) -> None:
        """Wait for the last requests, and count those without a response as failures."""
        self._in_flight.join(timeout=5)
        pending = list(self._waiting.values())
        self._in_flight.kill()
        for payload, scheduled in pending:
            self._record(payload, scheduled, 0, "no response at the end")
        self._http.close()

    def _send(self, payload: Payload, scheduled: float) -> None:
        key = object()
        self._waiting[key] = (payload, scheduled)
        try:
            response = self._http.post(payload.path, body=payload.body, headers=HEADERS)
            content = bytes(response.read())
            reason = failure(payload.route, response.status_code, content)
        except OSError as error:  # refused, reset, timed out
            content, reason = b"", f"{type(error).__name__}"
        del self._waiting[key]
        self._record(payload, scheduled, len(content), reason)

    def _record(self, payload: Payload, scheduled: float, size: int, reason: str | None) -> None:
        self.environment.events.request.fire(
            request_type="POST",
            name=payload.path,
            response_time=(time.perf_counter() - scheduled) * 1000,
            response_length=size,
            exception=None if reason is None else RuntimeError(reason),
            context={},
        )
