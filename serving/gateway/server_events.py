"""A stream of pieces as server-sent events (HTML standard, section 9.2).

```
data: {"index":0,"text":"Hello"}

data: {"index":0,"text":".","finish_reason":"stop","usage":{"prompt_tokens":3,…}}

data: [DONE]
```

A failure that comes after the headers is an `error` event, and the end without `[DONE]`.
"""

from __future__ import annotations

import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving.errors import InternalError, TriptychError
from serving.gateway.leaving import unless_left
from serving.gateway.streams import PieceStream
from triptych.messages import ErrorBody, ErrorResponse

log = logging.getLogger(__name__)

STREAM_FAILURE = "triptych.stream_failure"
"""Where the scope holds the wire name of an error that came after the headers."""

_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events
}


class ServerEvents(Response):
    """An answer that is sent as it is made; pieces that are ready together travel together."""

    media_type = "text/event-stream"

    def __init__(self, stream: PieceStream) -> None:
        self.status_code = 200
        self.background = None
        self._stream = stream
        timings = stream.timings.headers if stream.timings else {}
        self.init_headers({**_HEADERS, **timings})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client leaves: then nobody works for it any more."""
        try:
            await unless_left(receive, self._send(scope, send))
        finally:
            await self._stream.close()

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        try:
            async for pieces in self._stream.batches():
                body = b"".join(
                    b"data: %b\n\n" % piece.model_dump_json(exclude_none=True).encode()
                    for piece in pieces
                )
                await send({"type": "http.response.body", "body": body, "more_body": True})
            last = _DONE
        except Exception as raised:  # the protocol's edge: headers are out, the status is sent
            error = _as_ours(raised)
            scope[STREAM_FAILURE] = error.wire
            last = _event(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _as_ours(error: Exception) -> TriptychError:
    if isinstance(error, TriptychError):
        return error
    log.error("bug in a stream", exc_info=error)
    return InternalError("the gateway failed: its log has the cause")


def _event(error: TriptychError) -> bytes:
    body = ErrorBody(type=error.wire, message=error.message, field=error.field)
    data = ErrorResponse(error=body).model_dump_json(exclude_none=True)
    return b"event: error\ndata: %b\n\n" % data.encode()
