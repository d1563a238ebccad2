"""A reverse proxy that serves a gateway below a prefix and can hold a stream half-way."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "host", "keep-alive"}
_POLL_S = 0.05


class PrefixProxy:
    """The proxy; it runs in threads of its own.

    Args:
        target: URL of the gateway.
        prefix: Path below which it is served, without a slash at its end.
    """

    def __init__(self, target: str, prefix: str) -> None:
        self.gateway = httpx.Client(base_url=target, timeout=60)
        self.prefix = prefix
        self.held = threading.Event()
        """While set, streams pause after their first event."""
        self.broken = threading.Event()
        """While set, streams end after their first event."""
        self.hung_up = threading.Event()
        """Set when a client has left a stream that was held."""
        self.paths: list[str] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    def start(self) -> None:
        """Accept connections."""
        self._thread.start()

    def stop(self) -> None:
        """End all streams and close the socket."""
        self.held.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.gateway.close()


class _Handler(BaseHTTPRequestHandler):
    """One request, sent on without the prefix."""

    owner: PrefixProxy

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        self._forward(self.rfile.read(int(self.headers.get("content-length", 0))))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests read `paths`."""

    def _forward(self, body: bytes) -> None:
        self.owner.paths.append(self.path)
        path = self.path.removeprefix(self.owner.prefix)
        if path == self.path:
            self.send_error(404)
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        with self.owner.gateway.stream(
            self.command, path, headers=headers, content=body
        ) as response:
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send_events(response) if is_stream else self._send_all(response)

    def _send_all(self, response: httpx.Response) -> None:
        for chunk in response.iter_raw():
            self.wfile.write(chunk)

    def _send_events(self, response: httpx.Response) -> None:
        waiting = b""
        for chunk in response.iter_raw():
            waiting += chunk
            *events, waiting = waiting.split(b"\n\n")
            for event in events:
                self.wfile.write(event + b"\n\n")
                self.wfile.flush()
                if self.owner.broken.is_set() or not self._may_go_on():
                    return

    def _may_go_on(self) -> bool:
        """Waits while streams are held; False once the client has left."""
        while self.owner.held.is_set():
            readable, _, _ = select.select([self.connection], [], [], _POLL_S)
            if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                self.owner.hung_up.set()
                return False
        return True
