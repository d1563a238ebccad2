"""The outermost layer of HTTP: request ids, body limit, log line and metrics of each request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference.errors import (
    InternalError,
    InvalidRequest,
    PayloadTooLarge,
    ServingError,
    Unavailable,
)
from serving.gateway.admission.admission import Reserve
from serving.gateway.admission.auth import KEY, key_name
from serving.gateway.http.bodies import decode
from serving.gateway.http.page_routes import ASSETS
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.request_record import CANCELLED, record, request_id
from serving.gateway.observability.trace_context import (
    TRACE,
    TRACEPARENT,
    TRACERESPONSE,
    TRACESTATE,
    Trace,
    Tracer,
    parse,
)
from serving.gateway.requests.service import TIMEOUT_HEADER, set_timeout, shutting_down

log = logging.getLogger(__name__)

FAILURE = "triptych.failure"
"""Key of the scope that has the name of the request's error."""
DISCONNECTED = "triptych.disconnected"
"""Key of the scope that has a future, done when the client disconnects; other servers set none."""
PROBES = {"/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"}
"""Polled every few seconds: a failure is logged at INFO, but for the 503 of one that is not ready,
which `Readiness` logs when that changes."""
QUIET = PROBES | {ASSETS}

RenderError = Callable[[Scope, ServingError], Response]


@dataclass
class _Exchange:
    """One request and its response so far."""

    request_id: str
    started_s: float
    trace: Trace | None
    status: int = 0
    failure: str | None = None


class Middleware:
    """ASGI middleware.

    Args:
        metrics: Requests are counted there.
        payload_limit: Maximum size of a body in bytes.
        body: Reservation of the bytes of one body.
        render_error: Response of a request that failed by a bug.
        tracer: Begins the trace of each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        payload_limit: int,
        body: Callable[[], AbstractContextManager[Reserve]],
        render_error: RenderError,
        tracer: Tracer,
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._metrics = metrics
        self._payload_limit = payload_limit
        self._body = body
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a bug becomes a 500 and a log entry with the request's id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        parent = parse(headers.getlist(TRACEPARENT), headers.getlist(TRACESTATE))
        trace = None if scope["path"] in PROBES else self._tracer.begin(parent)
        TRACE.set(trace)
        exchange = _Exchange(request_id(headers.get("x-request-id")), time.perf_counter(), trace)
        declared = headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else 0
        sending = _observe(send, exchange)
        KEY.set(None)
        try:
            refusal = _take_timeout(headers)
            if refusal is not None:
                await self._render_error(scope, refusal)(scope, receive, sending)
                return
            with self._body() as reserve:
                coding = ", ".join(headers.getlist("content-encoding"))
                decoded = decode(receive, coding, self._payload_limit)
                limited = _limit(decoded, self._payload_limit, size, reserve)
                await self._app(scope, limited, sending)
        except ClientDisconnect:
            exchange.failure = CANCELLED
        except asyncio.CancelledError:  # by the server, at the end of the time for a shutdown
            exchange.failure = Unavailable.wire
            if not exchange.status:
                await self._render_error(scope, shutting_down())(scope, receive, sending)
        except Exception:
            log.exception("bug request_id=%s", exchange.request_id)
            exchange.failure = InternalError.wire
            if not exchange.status:
                error = InternalError("the gateway failed: its log has the cause under this id")
                await self._render_error(scope, error)(scope, receive, sending)
        finally:
            self._record(scope, exchange)

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        duration_s = time.perf_counter() - exchange.started_s
        route = getattr(scope.get("route"), "path", "unmatched")
        failure = exchange.failure or scope.get(FAILURE)
        if failure is None and exchange.status == 0:
            failure = CANCELLED
        elif failure is None and exchange.status >= 400:
            failure = "unknown"
        trace = exchange.trace
        record(
            self._metrics,
            route,
            duration_s,
            failure,
            trace,
            level=_level(route, exchange.status),
            request_id=exchange.request_id,
            method=scope["method"],
            status=exchange.status,
            key=key_name(),
        )
        if trace is not None:
            trace.annotate(
                {
                    "http.request.method": scope["method"],
                    "http.route": route,
                    "http.response.status_code": exchange.status,
                }
            )
            trace.end(f"{scope['method']} {route}", failure, is_fault=exchange.status >= 500)


def _level(route: str, status: int) -> int:
    is_expected = status in (200, 304) or (route in PROBES and status == 503)
    return logging.DEBUG if route in QUIET and is_expected else logging.INFO


def _take_timeout(headers: Headers) -> ServingError | None:
    """Take the client's own time limit, if it gives one; what is wrong with it."""
    try:
        set_timeout(headers.get(TIMEOUT_HEADER))
    except InvalidRequest as error:
        return error
    return None


def _limit(receive: Receive, limit: int, declared: int, reserve: Reserve) -> Receive:
    """`receive` that refuses a body over the limit: unread if declared so, else while reading.

    Args:
        limit: Of one body, in bytes.
        declared: Size of the body, if the header has it.
        reserve: Refuses what exceeds the limit of all bodies.
    """
    received = 0

    def check(size: int) -> None:
        if size > limit:
            raise PayloadTooLarge(f"the body has more than {limit} bytes: send several requests")

    async def limited() -> Message:
        nonlocal received
        if not received:
            check(declared)
            reserve(declared)  # refused before it is sent
            reserve(0)  # what has arrived counts
        message = await receive()
        if part := message.get("body"):
            received += len(part)
            check(received)
            reserve(received)
        return message

    return limited


def _observe(send: Send, exchange: _Exchange) -> Send:
    """`send` that adds the request's id and records the status."""

    async def observed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = exchange.request_id
            if exchange.trace is not None:
                headers[TRACERESPONSE] = exchange.trace.context.traceparent
            exchange.status = message["status"]
        await send(message)

    return observed
