"""What is refused before any route: paths without a key, and requests of other sites' pages.

A browser reaches the gateway through the site's own name, which has been made to point here (DNS
rebinding: the `Host` header is that name), or by a request that it sends to any site without asking
first (a form, or text: the `Origin` header is the site).

Dialects check keys themselves: each has its own form of refusal, and LibreTranslate's key is in the
body. A new path therefore needs a key unless it is listed here as open.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from inference.errors import CrossSite, ServingError, Unauthorized, UnknownHost
from serving.gateway.admission.auth import Keys
from serving.gateway.http.middleware import RenderError
from serving.settings.gateway_settings import GatewaySettings

_OPEN = frozenset({"/", "/health", "/ready", "/v2/health/live", "/v2/health/ready"})
"""Probes, and the page, which asks for the key."""
_PAGE = "/ui/"
_OPEN_SERVICE = "/grpc.health.v1.Health/"


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
                self._keys.check_header(Headers(scope=scope).get("authorization"))
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


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Requires a key of every service but health and those that check it themselves.

    Args:
        keys: There is at least one.
        own: Full names of services whose methods check the key.
    """

    def __init__(self, keys: Keys, own: Iterable[str]) -> None:
        self._keys = keys
        self._passed = (_OPEN_SERVICE, *(f"/{name}/" for name in own))

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The method's handler, or one that refuses."""
        if not details.method.startswith(self._passed):
            try:
                self._keys.check_header(dict(details.invocation_metadata).get("authorization"))
            except Unauthorized as error:
                return _refusing(error.message)
        return await continuation(details)


def _refusing(message: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    return grpc.stream_stream_rpc_method_handler(refuse)


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
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
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

    def _is_own(self, headers: Headers, hosts: list[str]) -> bool:
        """Whether no page sent the request, or one that may."""
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin", "").lower()
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
        is_safe = "." not in name or name.endswith(".localhost") or _is_address(name)
        return is_safe or name in self._names or name.endswith(self._suffixes)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


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
