"""Where Tritons are: fixed addresses, and names that are looked up again and again (D105)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from serving.ports import host_port

RESOLVE_S = 1.0
"""Between two lookups of a name."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """One Triton's HOST:PORT for gRPC, and for metrics if that is known."""

    grpc: str
    metrics: str | None = None


@dataclass(frozen=True)
class AddressSource:
    """One entry of `--triton`, with its counterpart of `--triton-metrics`."""

    grpc: str
    metrics: str | None = None

    @property
    def is_name(self) -> bool:
        """Whether it has to be looked up; gRPC resolves localhost and its own URIs itself."""
        host, _ = split(self.grpc)
        is_uri = "/" in self.grpc or self.grpc.startswith("unix:")
        return not (is_uri or host == "localhost" or _is_literal(host))

    def at(self, host: str) -> Address:
        """The Triton at one address of the name; metrics under the same name are there too."""
        grpc = host_port(host, split(self.grpc)[1])
        if self.metrics is None or split(self.metrics)[0] != split(self.grpc)[0]:
            return Address(grpc, self.metrics)
        return Address(grpc, host_port(host, split(self.metrics)[1]))


def paired(grpc: Sequence[str], metrics: Sequence[str]) -> list[AddressSource]:
    """The entries of both flags; there are as many of the second, or none."""
    return [AddressSource(*pair) for pair in zip(grpc, metrics or (None,) * len(grpc), strict=True)]


Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name. Raises OSError."""


async def look_up(name: str) -> Sequence[str]:
    """The IPv4 addresses of a name, or those of IPv6 if it has no others: one for each server.

    Raises:
        OSError: the name is unknown, or no resolver responds.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    by_family = {
        family: sorted({str(place[0]) for kind, *_, place in found if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return by_family[socket.AF_INET] or by_family[socket.AF_INET6]


async def follow(
    sources: Sequence[AddressSource],
    update: Callable[[Sequence[Address]], object],
    lookup: Lookup = look_up,
) -> None:
    """Look up the names among the sources until cancelled; what cannot be found stays as it was.

    Args:
        update: Called with the addresses of all sources, whenever they have changed.
    """
    found = {source: [Address(source.grpc, source.metrics)] for source in sources}
    names = [source for source in sources if source.is_name]
    found |= {source: [] for source in names}
    problems: dict[AddressSource, str] = {}
    while True:
        before = dict(found)
        for source in names:
            try:
                hosts = await lookup(split(source.grpc)[0])
            except OSError as error:
                if problems.get(source) != str(error):
                    log.warning("cannot look up %s: %s", source.grpc, error)
                problems[source] = str(error)
                continue
            problems.pop(source, None)
            found[source] = [source.at(host) for host in hosts]
        if found != before:
            update([one for addresses in found.values() for one in addresses])
        await asyncio.sleep(RESOLVE_S)


def split(text: str) -> tuple[str, str]:
    """Host and port of `HOST:PORT` or `[HOST]:PORT`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") if host.startswith("[") else host, port


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
