"""Images that requests name by URL, fetched within bounds, from public addresses.

Only from hosts that the operator lists, only from public addresses, without credentials, cookies,
proxies or compression. Each redirect is checked like the first URL. An image that cannot be fetched
is an error at its index; the others are served.

httpcore's pool, below an HTTP client, has no redirects, proxies, cookies or decompression to switch
off, and its network backend is the one place where a name becomes an address.

A name is resolved once, each of its addresses is checked, and the connection is made to an address
that was checked: a name that resolves to another address the next time (DNS rebinding) gains
nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpcore
import httpx

from inference.errors import InvalidRequest, PayloadTooLarge, ServingError, UnsupportedImage
from inference.tasks.shared.image_inputs import ImageInput
from serving.settings.gateway_settings import GatewaySettings
from triptych.task import IMAGES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""The addresses of a host."""

_UNICAST = ipaddress.IPv6Network("2000::/3")
_CARRIES_IPV4 = tuple(map(ipaddress.IPv6Network, ("2001::/32", "2002::/16")))
"""Teredo and 6to4: a relay would deliver them to an IPv4 address. NAT64 is not in `_UNICAST`."""


class ForbiddenAddress(Exception):
    """A host has an address that is not public, or no address."""


def is_public(address: Address) -> bool:
    """Whether an address is one host of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in _UNICAST or any(address in network for network in _CARRIES_IPV4):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


async def resolve_host(host: str, port: int) -> Sequence[Address]:
    """What the system's resolver says.

    Raises:
        OSError: the name is unknown.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(address[0]) for *_, address in found]


class PublicBackend(httpcore.AsyncNetworkBackend):
    """Connects to public addresses and to those of further networks, once and over TCP alone.

    Args:
        further: Networks that are allowed too.
        resolve: Finds the addresses of a host.
    """

    def __init__(self, further: Iterable[Network] = (), resolve: Resolve = resolve_host) -> None:
        self._further = tuple(further)
        self._resolve = resolve
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the host's addresses that responds.

        Raises:
            ForbiddenAddress: one of the addresses may not be connected to.
            httpcore.ConnectError: the name is unknown, or no address responds.
        """
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise ForbiddenAddress
        failure: Exception = httpcore.ConnectError("no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def _is_allowed(self, address: Address) -> bool:
        plain = getattr(address, "ipv4_mapped", None) or address
        return is_public(address) or any(plain in network for network in self._further)


MAX_REDIRECTS = 3
MAX_CONNECTIONS = 32
"""Of all requests; further images wait, within their time limit."""
MAX_LENGTH = 2048
"""Characters of a URL."""
_REDIRECTS = (301, 302, 303, 307, 308)
_UNTYPED = ("", "application/octet-stream", "binary/octet-stream")
_HEADERS = (("accept", "image/*"), ("accept-encoding", "identity"), ("user-agent", "triptych"))


@dataclass
class _Allowance:
    """Bytes that the images of one request may have together, as in a body."""

    bytes_left: int
    limit: int

    def take(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise PayloadTooLarge(
                f"the images at these URLs have more than {self.limit} bytes: send smaller ones"
            )


class ImageFetcher:
    """Fetches images from the hosts of `--image-urls`; without any, URLs remain as they are.

    Args:
        settings: Hosts and limits.
        resolve: Finds the addresses of a host.
        trust: Certificates of servers; None: the system's.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        resolve: Resolve = resolve_host,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = settings.image_urls
        self._limit = settings.payload_limit
        self._max_images = settings.max_client_batch_size
        self._timeout_s = settings.image_url_timeout
        self._pool: httpcore.AsyncConnectionPool | None = None
        if self._allowed:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=trust or _authorities(),
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=0,  # each connection's address has just been checked
                network_backend=PublicBackend(settings.image_url_networks, resolve),
            )

    def fetches(self, images: Sequence[ImageInput]) -> bool:
        """Whether any of a request's images is to be fetched; too many are refused elsewhere."""
        return (
            self._pool is not None and len(images) <= self._max_images and any(map(_is_url, images))
        )

    async def fetch(self, images: Sequence[ImageInput]) -> list[ImageInput]:
        """Images in their order, the bytes of a file or an error in place of each URL."""
        allowance = _Allowance(self._limit, self._limit)
        return list(
            await asyncio.gather(
                *(self._image(index, image, allowance) for index, image in enumerate(images))
            )
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.aclose()

    async def _image(self, index: int, image: ImageInput, allowance: _Allowance) -> ImageInput:
        if not isinstance(image, str) or not _is_url(image):
            return image
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(image, allowance)
        except ServingError as error:
            failure = error
        except ForbiddenAddress:
            failure = InvalidRequest("the host of the image's URL has no public address")
        except (TimeoutError, httpcore.TimeoutException):
            failure = InvalidRequest(f"the image was not received within {self._timeout_s:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError):
            failure = InvalidRequest("the server of the image's URL could not be reached")
        failure.field = f"{IMAGES}.{index}"
        return failure

    async def _follow(self, address: str, allowance: _Allowance) -> bytes:
        """The image at an address, or where it redirects to."""
        url = self._check(address)
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._body(url, allowance)
            if isinstance(found, bytes):
                return found
            url = self._check(found, base=url)
        raise InvalidRequest(f"the image's URL redirects more than {MAX_REDIRECTS} times")

    async def _body(self, url: httpx.URL, allowance: _Allowance) -> bytes | str:
        """The bytes at a URL, or the `Location` of a redirect."""
        assert self._pool is not None
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        headers = [*_HEADERS, ("host", url.netloc.decode("ascii"))]
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        async with self._pool.stream(
            "GET", target, headers=headers, extensions={"timeout": limits}
        ) as response:
            received = httpx.Headers(response.headers)
            if response.status in _REDIRECTS and "location" in received:
                return received["location"]
            _check_response(response.status, received)
            declared = received.get("content-length", "")
            if declared.isdecimal() and int(declared) > allowance.bytes_left:
                allowance.take(int(declared))
            body = bytearray()
            async for part in response.aiter_stream():
                allowance.take(len(part))
                body += part
            return bytes(body)

    def _check(self, address: str, base: httpx.URL | None = None) -> httpx.URL:
        """A URL that may be fetched.

        Raises:
            InvalidRequest: it is malformed, has credentials, or its origin is not listed.
        """
        try:
            if len(address) > MAX_LENGTH or not address.isascii() or not address.isprintable():
                raise httpx.InvalidURL("")
            url = base.join(address) if base else httpx.URL(address)
            has_host = bool(url.host) and "\\" not in address
        except (httpx.InvalidURL, ValueError):
            has_host = False
        if not has_host:
            raise InvalidRequest(
                f"the image's URL is malformed: send at most {MAX_LENGTH} characters of ASCII"
            )
        if url.userinfo:
            raise InvalidRequest("the image's URL has credentials: leave them out")
        if not any(origin.matches(url) for origin in self._allowed):
            raise InvalidRequest(
                "images are not fetched from this host: send base64 or a data URI, or start the "
                "gateway with the host in --image-urls"
            )
        return url


@cache
def _authorities() -> ssl.SSLContext:
    """Trusts what this machine trusts; reading that takes 20 ms."""
    return ssl.create_default_context()


def _is_url(image: ImageInput) -> bool:
    return isinstance(image, str) and image[:8].lower().startswith(("http://", "https://"))


def _check_response(status: int, headers: httpx.Headers) -> None:
    if status != 200:
        raise InvalidRequest(f"the server of the image's URL responded with status {status}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedImage("the image at the URL is compressed, which was not asked for")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _UNTYPED and not kind.startswith("image/"):
        raise UnsupportedImage("what is at the URL is not an image, by its Content-Type")
