"""A streamed response over HTTP, in a dialect's events."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference.errors import InternalError, ServingError
from serving.gateway.http.dialect import StreamRenderer
from serving.gateway.http.disconnect import unless_disconnected
from serving.gateway.http.middleware import FAILURE
from serving.gateway.requests.chunk_stream import ChunkStream

_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events
}
log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends chunks as they are produced; chunks that are ready together share one write.

    Args:
        headers: Of the response, beside those of every stream.
    """

    def __init__(
        self, stream: ChunkStream, renderer: StreamRenderer, headers: Mapping[str, str]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = renderer.media_type
        self._stream = stream
        self._renderer = renderer
        self.init_headers({**_HEADERS, **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client disconnects: that ends the work."""
        try:
            await unless_disconnected(receive, self._send(scope, send))
        finally:
            await self._stream.close()

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        try:
            async for chunks in self._stream.batches():
                body = self._renderer.chunks(chunks)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            last = self._renderer.end()
        except Exception as raised:  # the protocol's edge: the status has been sent
            error = _as_ours(raised)
            scope[FAILURE] = error.wire
            last = self._renderer.error(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _as_ours(error: Exception) -> ServingError:
    if isinstance(error, ServingError):
        return error
    log.error("bug in a stream", exc_info=error)
    return InternalError("the gateway failed: its log has the cause")
