"""A closed loop over HTTP, against a server of the standard library."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.harness.http_loop import http_loop


class Echo(BaseHTTPRequestHandler):
    """Responds with the body, in two parts; `bad` is refused."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(400 if body == b"bad" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        for part in (body[:1], body[1:]):
            self.wfile.write(part)
            self.wfile.flush()

    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword.lower(), value)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_each_response_is_counted_once(address: str) -> None:
    bodies = itertools.cycle([b"four", b"three"])
    sizes: list[int] = []

    def tokens(body: bytes) -> int:
        assert body in (b"four", b"three")
        sizes.append(len(body))
        return 7

    loop = http_loop(address, "/", bodies, tokens, 3, counted_s=0.05, fill_s=0.01)
    assert loop.tokens_per_second == pytest.approx(7 * loop.requests_per_second)
    assert len(loop.latencies_ms) <= len(sizes)
    assert loop.requests_per_second > 0
    assert loop.cpu_ms["client"] >= 0


def test_refused_request_ends_the_loop(address: str) -> None:
    with pytest.raises(RuntimeError, match="400 Bad Request"):
        http_loop(address, "/", itertools.repeat(b"bad"), len, 1, counted_s=0.05, fill_s=0.01)
