"""A gateway that drains is waited for; every other program that has the port is not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from serving import draining
from serving.draining import SHUTTING_DOWN, await_drained, readiness
from serving.ports import free_ports
from tests.serving.gateway.conftest import Gateway


@contextmanager
def answering(status: int, message: str, most: int) -> Iterator[int]:
    """A server that closes its port after so many requests; yields the port."""
    body = b'{"error": {"type": "unavailable", "message": "%s"}}' % message.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)

    def serve() -> None:
        with server:
            for _ in range(most):
                server.handle_request()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        while thread.is_alive():
            with socket.socket() as last:
                last.connect_ex(server.server_address[:2])
            thread.join(0.05)


def ports(http: int) -> dict[str, int]:
    return {"http": http, "grpc": 0}


def test_gateway_that_shuts_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_POLL_S", 0.01)
    said: list[str] = []
    with answering(503, f"not ready: {SHUTTING_DOWN}", 4) as port:
        await_drained("127.0.0.1", ports(port), said.append)
        assert free_ports("127.0.0.1", ports(port))["http"] == port
        assert said == [f"waiting for a gateway that is shutting down on 127.0.0.1:{port}"]


@pytest.mark.parametrize(
    ("status", "message"), [(503, "not ready: a is not loaded"), (200, ""), (404, "no such path")]
)
def test_other_programs_are_not_waited_for(status: int, message: str) -> None:
    said: list[str] = []
    with answering(status, message, 1) as port:
        await_drained("127.0.0.1", ports(port), said.append)
    await_drained("127.0.0.1", ports(0), said.append)
    await_drained("127.0.0.1", ports(port), said.append)
    assert said == []


def test_reason_of_a_gateway_is_read() -> None:
    with answering(503, "not ready: a is not loaded", 1) as port:
        assert readiness(f"127.0.0.1:{port}") == "not ready: a is not loaded"
    with answering(200, "", 1) as port:
        assert readiness(f"127.0.0.1:{port}") is None


async def test_gateway_says_that_it_drains() -> None:
    gateway = Gateway([])
    gateway.service.is_draining = True
    response = await gateway.http.get("/ready")
    assert response.status_code == 503
    assert SHUTTING_DOWN in response.json()["error"]["message"]
