"""HTTP servers on loopback, in threads that live as long as a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


@contextmanager
def handled_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server with a thread for each request."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield url


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """The URL of a server, whose thread lives as long as the block and logs no requests."""
    quiet = {"log_message": lambda *_: None}
    server.RequestHandlerClass = type("Quiet", (server.RequestHandlerClass,), quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
