"""The layers around the router: what each request has (id, body limit, log line), and refusals.

`Middleware` is the outermost. `OriginGate` refuses requests of other sites' pages: a browser
reaches the gateway through the site's own name, which has been made to point here (DNS rebinding:
the `Host` header is that name), or by a request that it sends to any site without asking first (a
form, or text: the `Origin` header is the site).

`KeyGate` refuses paths without a key. Dialects check keys themselves: each has its own form of
refusal, and LibreTranslate's key is in the body. A new path therefore needs a key unless it is
listed here as open.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference.errors import (
    CrossSite,
    InternalError,
    InvalidRequest,
    PayloadTooLarge,
    ServingError,
    Unauthorized,
    Unavailable,
    UnknownHost,
)
from serving.gateway.admission.admission import Reserve
from serving.gateway.admission.auth import KEY, Keys, key_name
from serving.gateway.http.bodies import decode
from serving.gateway.http.router import FAILURE
from serving.gateway.http.routes import ASSETS
from serving.gateway.observability.metrics import CANCELLED, Metrics, record, request_id
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
from serving.ports import parse_address
from serving.settings.gateway_settings import GatewaySettings

log = logging.getLogger(__name__)

_HEADERS = "triptych.headers"
_ID = "x-request-id"
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
        given = _headers(scope)
        parent = parse(given.get(TRACEPARENT, ()), given.get(TRACESTATE, ()))
        trace = None if scope["path"] in PROBES else self._tracer.begin(parent)
        TRACE.set(trace)
        exchange = _Exchange(request_id(_first(given, _ID)), time.perf_counter(), trace)
        declared = _first(given, "content-length") or ""
        size = int(declared) if declared.isdecimal() else 0
        sending = _observe(send, exchange)
        KEY.set(None)
        try:
            try:
                set_timeout(_first(given, TIMEOUT_HEADER))
            except InvalidRequest as refusal:
                await self._render_error(scope, refusal)(scope, receive, sending)
                return
            with self._body() as reserve:
                coding = ", ".join(given.get("content-encoding", ()))
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


def _headers(scope: Scope) -> Mapping[str, Sequence[str]]:
    """The values of each header of a request, which are read once."""
    found: dict[str, list[str]] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return found


def _first(headers: Mapping[str, Sequence[str]], name: str) -> str | None:
    return headers[name][0] if name in headers else None


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

    async def receive_limited() -> Message:
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

    return receive_limited


def _observe(send: Send, exchange: _Exchange) -> Send:
    """`send` that adds the request's id and records the status."""

    async def send_observed(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(_ID.encode(), exchange.request_id.encode())]
            if exchange.trace is not None:
                own.append((TRACERESPONSE.encode(), exchange.trace.context.traceparent.encode()))
            message["headers"] = [*message["headers"], *own]
            exchange.status = message["status"]
        await send(message)

    return send_observed


_OPEN = frozenset({"/", "/health", "/ready", "/v2/health/live", "/v2/health/ready"})
"""Probes, and the page, which asks for the key."""
_PAGE = "/ui/"


class KeyGate:
    """ASGI middleware that requires a key of every path, but for probes and the page.

    Args:
        keys: There is at least one.
        paths: Those of routes that check the key themselves, each in its own form.
        render_error: Responses of refused requests.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, paths: Collection[str], render_error: RenderError
    ) -> None:
        self._app = app
        self._keys = keys
        self._render_error = render_error
        self._passed = _OPEN.union(paths)
        self._patterns = [compile_path(path)[0] for path in paths if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer with 401."""
        if scope["type"] == "http" and not self._is_passed(scope["path"]):
            try:
                self._keys.check_header(_first(_headers(scope), "authorization"))
            except Unauthorized as error:
                await self._render_error(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_passed(self, path: str) -> bool:
        return (
            path in self._passed
            or path.startswith(_PAGE)
            or any(pattern.match(path) for pattern in self._patterns)
        )


_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[(?P<address>[^]]*)\]|(?P<name>[\w.-]*))(:\d*)?")
_OWN_SITE = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site`, which no page can set, of requests by the gateway's own page or its user."""


def is_guarded(settings: GatewaySettings, *, has_keys: bool) -> bool:
    """Whether a browser on the same machine or network could be used against the gateway."""
    return not has_keys or _is_loopback(settings.host)


class OriginGate:
    """ASGI middleware.

    Args:
        settings: Names of the gateway, and sites that browsers may call it from.
        render_error: Responses of refused requests.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings, render_error: RenderError) -> None:
        self._app = app
        self._render_error = render_error
        self._hosts = Hosts(_names(settings))
        self._origins = frozenset(origin.rstrip("/").lower() for origin in _origins(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse with 421 or 403."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await self._render_error(scope, error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ServingError | None:
        headers = _headers(scope)
        hosts = headers.get("host", ())
        if not all(map(self._hosts.has, hosts)):
            return UnknownHost(
                "the gateway is not served under the name of the Host header: use its address, or "
                "start it with --allowed-hosts NAME"
            )
        if scope["method"] in _READING or self._is_own(headers, hosts):
            return None
        return CrossSite(
            "a page of another site sent this request: start the gateway with "
            "--cors-allow-origin SITE to allow it"
        )

    def _is_own(self, headers: Mapping[str, Sequence[str]], hosts: Sequence[str]) -> bool:
        """Whether no page sent the request, or one that may."""
        site = _first(headers, "sec-fetch-site")
        origin = (_first(headers, "origin") or "").lower()
        if site in _OWN_SITE or "*" in self._origins:
            return True
        if not origin:
            return site is None
        return origin in self._origins or origin.partition("://")[2] in map(str.lower, hosts)


class Hosts:
    """Names under which the gateway is served.

    Addresses always belong to them, and names without dots: no site can have one.

    Args:
        names: Others; `*.DOMAIN` are all names below one.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lowered = {name.lower().rstrip(".") for name in names}
        self._names = {name for name in lowered if not name.startswith("*.")}
        self._suffixes = tuple(name[1:] for name in lowered if name.startswith("*."))

    def has(self, host: str) -> bool:
        """Whether a `Host` header has one of the names.

        Args:
            host: A name or an address, perhaps with a port.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["address"] or found["name"]).lower().rstrip(".")
        is_local = "." not in name or name.endswith(".localhost")
        is_safe = is_local or parse_address(name) is not None
        return is_safe or name in self._names or name.endswith(self._suffixes)


def _is_loopback(host: str) -> bool:
    address = parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _names(settings: GatewaySettings) -> list[str]:
    published = settings.public_url.host if settings.public_url else None
    return [socket.gethostname(), *settings.allowed_hosts, *([published] if published else [])]


def _origins(settings: GatewaySettings) -> list[str]:
    url = settings.public_url
    if url is None:
        return list(settings.cors_allow_origin)
    default = {"http": 80, "https": 443}[url.scheme]
    port = "" if url.port in (None, default) else f":{url.port}"
    return [*settings.cors_allow_origin, f"{url.scheme}://{url.host}{port}"]
