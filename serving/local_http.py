"""HTTP to servers of this machine, one connection a request.

Standard library only: for probes and programs that start often, or before all others.
"""

from __future__ import annotations

import http.client
import socket
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
