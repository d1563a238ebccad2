"""The HTTP clients: connections, retries and timeouts; `http_exchange` reads the responses."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Generic, TypeVar
from urllib.request import getproxies, proxy_bypass

import httpx
from httpx_sse import EventSource

from triptych.client import http_exchange
from triptych.client.base_client import Response, Retries
from triptych.errors import InvalidArgument
from triptych.generated.methods import AwaitableMethods, BlockingMethods
from triptych.operation import Operation

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 60.0
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)
_USER = re.compile(r"(?<=//)[^/@]*@")


class _Connection(Generic[Http, Transport]):
    """What both clients are given, and what they do with it."""

    _kind: Callable[..., Http]
    _http: Http

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._retries: Retries = retries or Retries()
        self._takes_proxies: bool = transport is None
        with _refusing_proxies():
            self._http = self._kind(
                base_url=_check(base_url),
                headers=http_exchange.headers(api_key),
                timeout=timeout,
                transport=transport,
                verify=_certificates(base_url),
            )

    @contextmanager
    def _errors(self, url: httpx.URL) -> Iterator[None]:
        """Raises the exceptions of failures below HTTP."""
        try:
            yield
        except httpx.TransportError as failure:
            proxy = _proxy_of(url) if self._takes_proxies else None
            raise http_exchange.transport_error(failure, url, proxy) from failure


class Client(_Connection[httpx.Client, httpx.BaseTransport], BlockingMethods):
    """A gateway over HTTP.

    ```python
    with Client("http://127.0.0.1:8080") as client:
        client.translate("Hola, mundo.", source="es", target="en").data[0].text
    ```

    One client may be used by several threads.

    Args:
        base_url: URL of the gateway.
        api_key: Sent as a bearer token.
        timeout: Seconds that an attempt may wait for the connection, or for further bytes of the
            response; None waits without end.
        retries: How often broken connections, 429 and 503 are retried.
        transport: For tests and proxies, as httpx takes it.
    """

    _kind = httpx.Client

    def health(self) -> bool:
        return http_exchange.is_ready(self._attempt(self._http.build_request("GET", "/health")))

    def ready(self) -> bool:
        return http_exchange.is_ready(self._attempt(self._http.build_request("GET", "/ready")))

    def close(self) -> None:
        self._http.close()

    def send(self, operation: Operation[Response]) -> Response:
        def attempt() -> Response:
            response = self._attempt(http_exchange.request(self._http, operation))
            return http_exchange.parse(operation, response)

        return self._retries.run(attempt)

    def stream(self, operation: Operation[Response]) -> Generator[Response, None, None]:
        def begin() -> httpx.Response:
            response = self._attempt(http_exchange.request(self._http, operation), stream=True)
            if not response.is_success:
                with closing(response):
                    response.read()
                    raise http_exchange.error(response)
            return response

        with closing(self._retries.run(begin)) as response:
            http_exchange.check_stream(response)
            reader = http_exchange.EventReader(operation, response)
            with self._errors(response.url):
                for event in EventSource(response).iter_sse():
                    yield from reader.chunks(event)
            reader.check_end()

    def _attempt(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        with self._errors(request.url):
            return self._http.send(request, stream=stream)


class AsyncClient(_Connection[httpx.AsyncClient, httpx.AsyncBaseTransport], AwaitableMethods):
    """A gateway over HTTP, for asyncio; otherwise as `Client`.

    ```python
    async with AsyncClient("http://127.0.0.1:8080") as client:
        answer = await client.caption("boat.png")
    ```
    """

    _kind = httpx.AsyncClient

    async def health(self) -> bool:
        response = await self._attempt(self._http.build_request("GET", "/health"))
        return http_exchange.is_ready(response)

    async def ready(self) -> bool:
        response = await self._attempt(self._http.build_request("GET", "/ready"))
        return http_exchange.is_ready(response)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, operation: Operation[Response]) -> Response:
        async def attempt() -> Response:
            response = await self._attempt(http_exchange.request(self._http, operation))
            return http_exchange.parse(operation, response)

        return await self._retries.run_async(attempt)

    async def stream(self, operation: Operation[Response]) -> AsyncGenerator[Response, None]:
        async def begin() -> httpx.Response:
            request = http_exchange.request(self._http, operation)
            response = await self._attempt(request, stream=True)
            if not response.is_success:
                async with aclosing(response):
                    await response.aread()
                    raise http_exchange.error(response)
            return response

        async with aclosing(await self._retries.run_async(begin)) as response:
            http_exchange.check_stream(response)
            reader = http_exchange.EventReader(operation, response)
            with self._errors(response.url):
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        for chunk in reader.chunks(event):
                            yield chunk
            reader.check_end()

    async def _attempt(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        with self._errors(request.url):
            return await self._http.send(request, stream=stream)


def _certificates(base_url: str) -> ssl.SSLContext | bool:
    """What TLS trusts. Where nothing uses it, the system's certificates are not read: slow."""
    uses_tls = any(url.lower().startswith("https:") for url in (base_url, *getproxies().values()))
    return uses_tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextmanager
def _refusing_proxies() -> Iterator[None]:
    """Name the proxies of the environment where httpx cannot use one of them.

    Raises:
        InvalidArgument: its kind is unknown, or needs a package that is not installed.
    """
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        if isinstance(error, InvalidArgument):
            raise
        proxies = ", ".join(_describe(name) for name in _variables())
        raise InvalidArgument(f"{proxies} cannot be used: {error}: unset it") from None


def _proxy_of(url: httpx.URL) -> str | None:
    """The proxy of the environment that httpx takes for a URL, with its variable."""
    if proxy_bypass(url.host):
        return None
    names = {name.lower(): name for name in _variables()}
    for name in (f"{url.scheme}_proxy", "all_proxy"):
        if name in names:
            return f"the proxy {_describe(names[name])} ($no_proxy exempts hosts)"
    return None


def _variables() -> list[str]:
    """Variables that name a proxy; of two, the one in lower case counts."""
    known = ("http_proxy", "https_proxy", "all_proxy")
    either = [name if os.environ.get(name) else name.upper() for name in known]
    return [name for name in either if os.environ.get(name)]


def _describe(name: str) -> str:
    """`URL of $VARIABLE`, without the password that the URL may have."""
    return f"{_USER.sub('', os.environ[name])} of ${name}"


def _check(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidArgument(f"{base_url!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidArgument(f"{base_url!r} is not a URL; expected e.g. {DEFAULT_URL}")
    return url
