"""A lean HTTP connection: the client shares the machine's cores with the server that it measures.

`http.client` parses headers with the e-mail package, which takes longer than a small request.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

TIMEOUT_S = 300
_LARGEST_READ = 1 << 18


class Connection:
    """One connection that is kept alive. Used by one thread.

    Args:
        url: The server, `http://HOST:PORT`.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self._host = f"{address.hostname}:{address.port}"
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the response.

        Raises:
            OSError: the server closed the connection or did not respond in time.
            ValueError: the response has no `content-length`.
        """
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: {kind}\r\n"
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        received = self._read()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._read()
        status, length = parse_head(received[:end])
        rest = [received[end + 4 :]]
        missing = length - len(rest[0])
        while missing > 0:
            rest.append(self._read())
            missing -= len(rest[-1])
        return status, b"".join(rest)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self) -> bytes:
        data = self._socket.recv(_LARGEST_READ)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data


def parse_head(head: bytes) -> tuple[int, int]:
    """Status and length of the body, out of the head of a response.

    Raises:
        ValueError: it has no `content-length`.
    """
    first, *lines = head.split(b"\r\n")
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(first.split()[1]), int(value)
    raise ValueError("a response without content-length")
