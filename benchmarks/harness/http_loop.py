"""A closed loop over HTTP/1.1 in one thread: what its client takes, a server on its cores lacks.

A thread and an `http.client` for each request take several times its CPU time, and send a request
in two packets, which the server reads apart.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.harness.closed_loop import COUNTED_S, FILL_S, Answered, Loop, counted
from benchmarks.harness.processes import Processes

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_READ_BYTES = 1 << 16


class _Connection:
    """One request at a time.

    Args:
        address: HOST:PORT.
        path: Of all requests.
    """

    def __init__(self, address: str, path: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        self._head = f"{head}content-length: ".encode()
        self._received = b""
        self.asked_s = 0.0

    def send(self, body: bytes) -> None:
        """Send a JSON body."""
        self.asked_s = time.perf_counter()
        self.socket.sendall(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def read(self) -> bytes | None:
        """What has arrived: the body of the response, or None if it is not complete.

        Raises:
            RuntimeError: the response has another status than 200, or the connection was closed.
        """
        received = self.socket.recv(_READ_BYTES)
        self._received += received
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if received and (length is None or len(body) < int(length[1])):
            return None
        if not received or not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self._received.decode() or "the server closed the connection")
        self._received = b""
        return body


def http_loop(
    address: str,
    path: str,
    bodies: Iterator[bytes],
    tokens: Callable[[bytes], int],
    in_flight: int,
    counted_s: float = COUNTED_S,
    fill_s: float = FILL_S,
) -> Loop:
    """As `closed_loop`, with connections in place of threads.

    Args:
        address: HOST:PORT of the server.
        path: What bodies are sent to.
        bodies: JSON, endless.
        tokens: Body of a response → tokens, or whatever else is to be counted.
        in_flight: Requests, one a connection.
    """
    answers: list[Answered] = []
    processes = Processes()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(in_flight):
            connection = _Connection(address, path)
            stack.enter_context(connection.socket)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(next(bodies))

        def run(until_s: float, *, is_over: bool = False) -> None:
            left = in_flight
            while left and (is_over or time.perf_counter() < until_s):
                for key, _ in selector.select(timeout=0.01):
                    connection: _Connection = key.data
                    if (body := connection.read()) is None:
                        continue
                    now_s = time.perf_counter()
                    answers.append(Answered(connection.asked_s, now_s, tokens(body)))
                    if is_over:
                        left -= 1
                    else:
                        connection.send(next(bodies))

        run(time.perf_counter() + fill_s)
        start_s, before = time.perf_counter(), processes.cpu_seconds()
        run(start_s + counted_s)
        stop_s, after = time.perf_counter(), processes.cpu_seconds()
        run(stop_s, is_over=True)
    cpu_s = {part: seconds - before[part] for part, seconds in after.items()}
    return counted(answers, start_s, stop_s, cpu_s)
