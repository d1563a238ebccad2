"""The HTTP clients. What is said is in `calls` and `http_exchange`; here it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from types import TracebackType
from typing import Self, TypeVar

import httpx

from triptych import calls, generation, http_exchange
from triptych.calls import Answer_co, Call
from triptych.errors import InvalidArgument, TriptychError
from triptych.methods import async_iterating, awaitable, blocking, iterating
from triptych.retries import Retries

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 60.0


class Client:
    """A gateway over HTTP.

    ```python
    with Client("http://127.0.0.1:8080") as client:
        client.translate("Hola, mundo.", source="es", target="en").data[0].text
    ```

    One client may be used by several threads.

    Args:
        base_url: Where the gateway is.
        api_key: Sent as a bearer token.
        timeout: Seconds for one attempt, from connecting to the whole answer's last byte
            without a pause longer than that.
        retries: What to do about broken connections, 429 and 503.
        transport: For tests and proxies, as httpx takes it.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries or Retries()
        self._http = httpx.Client(
            base_url=_checked(base_url),
            headers=http_exchange.headers(api_key),
            timeout=timeout,
            transport=transport,
        )

    translate = blocking(calls.translate)
    caption = blocking(calls.caption)
    zero_shot = blocking(calls.zero_shot)
    generate = blocking(generation.generate)
    translate_stream = iterating(calls.translate_stream)
    caption_stream = iterating(calls.caption_stream)
    generate_stream = iterating(generation.generate_stream)
    models = blocking(calls.models)

    def health(self) -> bool:
        """Whether the gateway's process answers; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        response = self._attempt(self._http.build_request("GET", "/health"))
        return http_exchange.is_ready(response)

    def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        response = self._attempt(self._http.build_request("GET", "/ready"))
        return http_exchange.is_ready(response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: Call[Answer_co]) -> Answer_co:
        def attempt() -> Answer_co:
            response = self._attempt(http_exchange.request(self._http, call))
            return http_exchange.answer(call, response)

        return self._retries.until_answered(attempt)

    def _stream(self, call: Call[Answer_co]) -> Iterator[Answer_co]:
        """The pieces of an answer; closing the iterator ends the request."""

        def begin() -> httpx.Response:
            response = self._attempt(http_exchange.request(self._http, call), stream=True)
            if not response.is_success:
                with closing(response):
                    response.read()
                    raise http_exchange.error(response)
            return response

        with closing(self._retries.until_answered(begin)) as response:
            events = http_exchange.Events(call, response)
            try:
                for data in response.iter_bytes():
                    yield from events.read(data)
            except httpx.TransportError as failure:
                raise http_exchange.transport_error(failure, response.url) from failure
            events.check_end()

    def _attempt(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.TransportError as failure:
            raise http_exchange.transport_error(failure, request.url) from failure


class AsyncClient:
    """A gateway over HTTP, for asyncio; otherwise as `Client`.

    ```python
    async with AsyncClient("http://127.0.0.1:8080") as client:
        answer = await client.caption("boat.png")
    ```
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries or Retries()
        self._http = httpx.AsyncClient(
            base_url=_checked(base_url),
            headers=http_exchange.headers(api_key),
            timeout=timeout,
            transport=transport,
        )

    translate = awaitable(calls.translate)
    caption = awaitable(calls.caption)
    zero_shot = awaitable(calls.zero_shot)
    generate = awaitable(generation.generate)
    translate_stream = async_iterating(calls.translate_stream)
    caption_stream = async_iterating(calls.caption_stream)
    generate_stream = async_iterating(generation.generate_stream)
    models = awaitable(calls.models)

    async def health(self) -> bool:
        """Whether the gateway's process answers; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        response = await self._attempt(self._http.build_request("GET", "/health"))
        return http_exchange.is_ready(response)

    async def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        response = await self._attempt(self._http.build_request("GET", "/ready"))
        return http_exchange.is_ready(response)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _send(self, call: Call[Answer_co]) -> Answer_co:
        async def attempt() -> Answer_co:
            response = await self._attempt(http_exchange.request(self._http, call))
            return http_exchange.answer(call, response)

        return await self._until_answered(attempt)

    async def _stream(self, call: Call[Answer_co]) -> AsyncIterator[Answer_co]:
        """The pieces of an answer; closing the iterator ends the request."""

        async def begin() -> httpx.Response:
            response = await self._attempt(http_exchange.request(self._http, call), stream=True)
            if not response.is_success:
                async with aclosing(response):
                    await response.aread()
                    raise http_exchange.error(response)
            return response

        async with aclosing(await self._until_answered(begin)) as response:
            events = http_exchange.Events(call, response)
            try:
                async for data in response.aiter_bytes():
                    for piece in events.read(data):
                        yield piece
            except httpx.TransportError as failure:
                raise http_exchange.transport_error(failure, response.url) from failure
            events.check_end()

    async def _until_answered(self, attempt: Callable[[], Awaitable[T]]) -> T:
        failed = 0
        while True:
            try:
                return await attempt()
            except TriptychError as error:
                failed += 1
                wait_s = self._retries.wait_s(failed, error)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)

    async def _attempt(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            return await self._http.send(request, stream=stream)
        except httpx.TransportError as failure:
            raise http_exchange.transport_error(failure, request.url) from failure


def _checked(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidArgument(f"{base_url} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidArgument(f"{base_url} is not a URL; expected e.g. {DEFAULT_URL}")
    return url
