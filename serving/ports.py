"""TCP ports: listening sockets, free ports for servers that open their own, and addresses."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Collection
from contextlib import ExitStack
from functools import lru_cache

from inference.errors import SetupError

_ANY_IPV6 = ipaddress.IPv6Address("::")
_ANY = {ipaddress.IPv4Address("0.0.0.0"): "127.0.0.1", _ANY_IPV6: "::1"}
"""Where a server that listens on all addresses is reached from this machine."""


@lru_cache(maxsize=64)  # the same for most requests
def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def host_port(host: str, port: int | str) -> str:
    """`HOST:PORT`, as in a URL: with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """An address of this machine at which a server that listens on `host` is reached."""
    address = parse_address(host)
    return host if address is None else _ANY.get(address, host)


def address_of(host: str) -> str:
    """The address of a host: of a name with both, that of IPv4.

    Raises:
        OSError: the name has none.
    """
    if ":" in host:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:  # an empty part of a name, or one that is too long
        raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from None
    places = {family: str(place[0]) for family, *_, place in reversed(found)}
    return places.get(socket.AF_INET) or places[socket.AF_INET6]


def listening(host: str, port: int, protocol: str) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        SetupError: the port is in use, or the address is not this machine's.
    """
    try:
        listener = socket.create_server(
            (host, port), family=_family(host), backlog=1024, dualstack_ipv6=_is_dual(host)
        )
    except OSError as error:
        raise _unusable(host, port, protocol, error) from None
    # asyncio sets this only on sockets created with IPPROTO_TCP, which these are not; without it
    # each response after a connection's first waits 40 ms for a delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def reserved(host: str, port: int, protocol: str) -> socket.socket:
    """A socket that keeps a port for several listeners of this user; port 0 takes any free one.

    It does not listen itself. The listeners set SO_REUSEPORT.

    Raises:
        SetupError: the port is in use, or the address is not this machine's.
    """
    with listening(host, port, protocol) as alone:  # SO_REUSEPORT would share it with another's
        chosen = alone.getsockname()[1]
    holder = _create_socket(host)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, chosen))
    except OSError as error:
        holder.close()
        raise _unusable(host, chosen, protocol, error) from None
    return holder


def free_ports(host: str, requested: dict[str, int], taken: Collection[int] = ()) -> dict[str, int]:
    """A distinct free port for each name; 0 requests any.

    All are bound while choosing and released on return.

    Args:
        host: Address that the server will listen on.
        requested: Port by purpose ("HTTP").
        taken: Ports that others will listen on: no free choice.

    Raises:
        SetupError: a port is in use, or the address is not this machine's.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as bound:
        # Fixed ports first, or a free choice could take one of them.
        for purpose, port in sorted(requested.items(), key=lambda item: item[1] == 0):
            while purpose not in chosen:
                try:
                    listener = bound.enter_context(_create_socket(host))
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind((host, port))
                    listener.listen()
                except OSError as error:
                    raise _unusable(host, port, purpose, error) from None
                found = int(listener.getsockname()[1])
                if port or found not in taken:
                    chosen[purpose] = found
    return {purpose: chosen[purpose] for purpose in requested}


def _create_socket(host: str) -> socket.socket:
    family = _family(host)
    made = socket.socket(family, socket.SOCK_STREAM)
    if family is socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not _is_dual(host)))
    return made


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address_of(host) else socket.AF_INET


def _is_dual(host: str) -> bool:
    """Whether a socket takes IPv4 too, as gRPC's do."""
    return parse_address(host) == _ANY_IPV6 and socket.has_dualstack_ipv6()


def _unusable(host: str, port: int, purpose: str, error: OSError) -> SetupError:
    if isinstance(error, socket.gaierror):  # its numbers are not the system's
        return SetupError(
            f"cannot listen on {host!r} for {purpose}: {error.strerror}: give an address of this "
            "machine, or a name that has one"
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = {
        errno.EADDRINUSE: "stop what listens there, or choose another port",
        errno.EADDRNOTAVAIL: "give an address of this machine",
        errno.EAFNOSUPPORT: "give an address of IPv4",
    }.get(error.errno or 0, "choose another port")
    return SetupError(f"cannot listen on {host_port(host, port)} for {purpose}: {reason}: {advice}")
