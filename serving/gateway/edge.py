"""The outermost layer of HTTP: request ids, body cap, log line and metrics of each request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import InternalError, PayloadTooLarge
from serving.gateway.errors import error_response
from serving.gateway.metrics import Metrics
from serving.gateway.server_events import STREAM_FAILURE

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
CANCELLED = "cancelled"
PROBES = {"/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"}
"""Asked every few seconds by machines: logged only when the answer is news."""


def request_id(asked: str | None) -> str:
    """The id that the client sent, if it can be logged and sent back, else a new one."""
    return asked if asked and _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex


@dataclass
class _Exchange:
    """One request on its way through."""

    request_id: str
    started_s: float
    status: int = 0
    failure: str | None = None


class Edge:
    """ASGI middleware.

    Args:
        app: What lies inside.
        metrics: Where requests are counted.
        payload_limit: Bytes of a body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, payload_limit: int) -> None:
        self._app = app
        self._metrics = metrics
        self._payload_limit = payload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a bug inside becomes a 500 and a log entry under the request's id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = _Exchange(request_id(headers.get("x-request-id")), time.perf_counter())
        claimed = headers.get("content-length", "")
        counted = _counted(receive, self._payload_limit, int(claimed) if claimed.isdecimal() else 0)
        sending = _stamped(send, exchange)
        try:
            await self._app(scope, counted, sending)
        except ClientDisconnect:
            exchange.failure = CANCELLED
        except Exception:
            log.exception("bug request_id=%s", exchange.request_id)
            exchange.failure = InternalError.wire
            if not exchange.status:
                error = InternalError("the gateway failed: its log has the cause under this id")
                await error_response(error)(scope, receive, sending)
        finally:
            self._record(scope, exchange)

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        duration_s = time.perf_counter() - exchange.started_s
        route = getattr(scope.get("route"), "path", "unmatched")
        if not (exchange.status or exchange.failure):
            exchange.failure = CANCELLED
        exchange.failure = exchange.failure or scope.get(STREAM_FAILURE)
        self._metrics.answered(route, duration_s, exchange.failure)
        log.log(
            logging.DEBUG if route in PROBES and exchange.status == 200 else logging.INFO,
            "answered",
            extra={
                "request_id": exchange.request_id,
                "method": scope["method"],
                "route": route,
                "status": exchange.status,
                "error": exchange.failure,
                "duration_ms": round(duration_s * 1000, 1),
            },
        )


def _counted(receive: Receive, limit: int, claimed: int) -> Receive:
    """`receive` that refuses a body that claims to be too large unread, and others as they come."""
    received = 0

    def check(size: int) -> None:
        if size > limit:
            raise PayloadTooLarge(f"the body has more than {limit} bytes: send several requests")

    async def counted() -> Message:
        nonlocal received
        check(claimed)
        message = await receive()
        received += len(message.get("body", b""))
        check(received)
        return message

    return counted


def _stamped(send: Send, exchange: _Exchange) -> Send:
    """`send` that adds the request's id and notes what was answered."""

    async def stamped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = exchange.request_id
            exchange.status = message["status"]
            if exchange.status >= 400 and exchange.failure is None:
                exchange.failure = headers.get("x-error-type", "unknown")
            del headers["x-error-type"]
        await send(message)

    return stamped
