"""TCP ports: listening sockets, and free ports for servers that open their own."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from inference.errors import SetupError


def listening(host: str, port: int, protocol: str) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        SetupError: the port is in use, or the address is not this machine's.
    """
    try:
        listener = socket.create_server((host, port), family=_family(host), backlog=1024)
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
    holder = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, chosen))
    except OSError as error:
        holder.close()
        raise _unusable(host, chosen, protocol, error) from None
    return holder


def free_ports(host: str, requested: dict[str, int]) -> dict[str, int]:
    """A distinct free port for each name; 0 requests any.

    All are bound while choosing and released on return.

    Args:
        host: Address that the server will listen on.
        requested: Port by purpose ("HTTP").

    Raises:
        SetupError: a port is in use, or the address is not this machine's.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as bound:
        # Fixed ports first, or a free choice could take one of them.
        for purpose, port in sorted(requested.items(), key=lambda item: item[1] == 0):
            listener = bound.enter_context(socket.socket(_family(host), socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OSError as error:
                raise _unusable(host, port, purpose, error) from None
            chosen[purpose] = int(listener.getsockname()[1])
    return {purpose: chosen[purpose] for purpose in requested}


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _unusable(host: str, port: int, purpose: str, error: OSError) -> SetupError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return SetupError(
        f"cannot listen on {host}:{port} for {purpose}: {reason}: "
        "stop what listens there, or choose another port"
    )
