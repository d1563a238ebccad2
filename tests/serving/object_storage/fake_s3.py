"""A server of S3's PUT and GET of objects, with keys in memory; the signature must name the key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.local_server import handled_by

ACCESS_KEY = "access-key"


@dataclass
class FakeS3:
    """Path of an object (`/bucket/key`) → its content."""

    objects: dict[str, bytes] = field(default_factory=dict)
    address: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What a pod gets from its ConfigMap and Secret, and permission to do without TLS."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    state = FakeS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if self._is_signed():
                state.objects[self.path] = content
                self._send(200, b"", etag='"1"')

        def do_GET(self) -> None:
            if self._is_signed():
                found = state.objects.get(self.path)
                missing = b"<Error><Code>NoSuchKey</Code></Error>"
                self._send(*((200, found) if found is not None else (404, missing)), etag='"1"')

        def _is_signed(self) -> bool:
            signed = f"Credential={ACCESS_KEY}/" in self.headers.get("authorization", "")
            if not signed:
                self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
            return signed

        def _send(self, status: int, body: bytes, etag: str = "") -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("last-modified", "Tue, 24 Nov 2026 12:00:00 GMT")
            if etag:
                self.send_header("etag", etag)
            self.end_headers()
            self.wfile.write(body)

    with handled_by(Handler) as state.address:
        yield state
