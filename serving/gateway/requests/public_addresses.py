"""Connections to public addresses only, whatever a name resolves to.

A name is resolved once, each of its addresses is checked, and the connection is made to an address
that was checked: a name that resolves to another address the next time (DNS rebinding) gains
nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore

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


async def resolved(host: str, port: int) -> Sequence[Address]:
    """What the system's resolver says.

    Raises:
        OSError: the name is unknown.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(address[0]) for *_, address in found]


class PublicBackend(httpcore.AsyncNetworkBackend):
    """Connects to public addresses and to those of further networks.

    Args:
        further: Networks that are allowed too.
        resolve: Finds the addresses of a host.
    """

    def __init__(self, further: Iterable[Network] = (), resolve: Resolve = resolved) -> None:
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

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Never.

        Raises:
            ForbiddenAddress: always.
        """
        raise ForbiddenAddress

    async def sleep(self, seconds: float) -> None:
        """Between attempts."""
        await self._backend.sleep(seconds)

    def _is_allowed(self, address: Address) -> bool:
        plain = getattr(address, "ipv4_mapped", None) or address
        return is_public(address) or any(plain in network for network in self._further)
