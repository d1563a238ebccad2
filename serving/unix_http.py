"""HTTP over a Unix socket, one connection a request; standard library only, for the probes."""

from __future__ import annotations

import http.client
import socket
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


def request(path: Path, method: str, url: str, timeout_s: float, body: bytes = b"") -> Response:
    """Send a request and read the response.

    Args:
        path: Of the server's socket.
        method: Of the request.
        url: Path and query of the request.
        timeout_s: For the connection, and for each part of the response.
        body: Of the request, JSON.

    Raises:
        OSError: no response; `TimeoutError` among others.
    """
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection.sock:
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(path))
        try:
            connection.request(method, url, body, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                return Response(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error
