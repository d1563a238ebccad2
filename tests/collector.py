"""An OpenTelemetry collector in process: it receives OTLP over HTTP and parses the spans."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


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


_WAIT_S = 30.0


@dataclass(frozen=True)
class CollectedSpan:
    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, str | int | float] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    state: str = ""


class Collector:
    """Listens on loopback.

    Attributes:
        bodies: As they came, decompressed.
        hold: While set, requests wait for it.
    """

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.bodies: list[bytes] = []
        self.hold: threading.Event | None = None
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.hold is not None:
                    collector.hold.wait(_WAIT_S)
                if self.path == "/v1/traces":
                    is_json = "json" in self.headers["content-type"]
                    collector._take(
                        body,
                        _from_json(body) if is_json else ExportTraceServiceRequest.FromString(body),
                    )
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        self._server = handled_by(Handler)

    def __enter__(self) -> Collector:
        self.url = self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.__exit__(None, None, None)

    def wait(self, is_enough: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """The spans, once there are enough."""
        until_s = time.monotonic() + _WAIT_S
        while not is_enough(self.spans) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert is_enough(self.spans), [span.name for span in self.spans]
        return list(self.spans)

    def _take(self, body: bytes, request: ExportTraceServiceRequest) -> None:
        self.bodies.append(body)
        for group in request.resource_spans:
            resource = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [
                    CollectedSpan(
                        span.name,
                        resource["service.name"],
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.code == 2,
                        {
                            each.key: getattr(each.value, each.value.WhichOneof("value"))
                            for each in span.attributes
                        },
                        tuple(event.name for event in span.events),
                        span.trace_state,
                    )
                    for span in scope.spans
                ]


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    """Of OTLP's JSON, in which ids are hexadecimal, unlike protobuf's own."""
    fields = json.loads(body)
    for group in fields["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    span[name] = base64.b64encode(bytes.fromhex(span.get(name, ""))).decode()
    return ParseDict(fields, ExportTraceServiceRequest(), ignore_unknown_fields=True)
