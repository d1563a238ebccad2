"""HTTP to servers of this machine, one connection a request.

Standard library only: for probes and programs that start often, or before all others.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Response:
    """What a server responded."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it did what was requested."""
        return self.status == http.HTTPStatus.OK


LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine by its name or address alone; no name is looked up."""
    if host is None or host.lower() == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_loopback_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which a child process reaches this machine's servers without a proxy."""
    given = environment.get("no_proxy") or environment.get("NO_PROXY", "")
    names = given if given.strip() == "*" else ",".join(filter(None, [given, *LOOPBACK]))
    return dict.fromkeys(("no_proxy", "NO_PROXY"), names)


def request(
    server: Path | str, method: str, url: str, timeout_s: float, body: bytes = b""
) -> Response:
    """Send a request and read the response.

    Args:
        server: Its Unix socket, or `host:port`.
        method: Of the request.
        url: Path and query of the request.
        timeout_s: For the connection, and for each part of the response.
        body: Of the request, JSON.

    Raises:
        OSError: no response; `TimeoutError` among others.
    """
    with closing(_connection(server, timeout_s)) as connection:
        try:
            connection.request(method, url, body, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                return Response(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error


def _connection(server: Path | str, timeout_s: float) -> http.client.HTTPConnection:
    if isinstance(server, str):
        return http.client.HTTPConnection(server, timeout=timeout_s)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(timeout_s)
    try:
        connection.sock.connect(str(server))
    except BaseException:
        connection.close()
        raise
    return connection
