"""Sockets to listen on, taken before anything else is started."""

from __future__ import annotations

import os
import socket

from serving.errors import SetupError


def listening(host: str, port: int, protocol: str) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        SetupError: the port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SetupError(f"cannot listen on {host}:{port} for {protocol}: {reason}") from None
    # asyncio sets this only on sockets that say IPPROTO_TCP, which these do not; without
    # it each answer after a connection's first waits 40 ms for a delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
