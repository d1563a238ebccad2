"""uvicorn as the gateway runs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from serving.gateway.http.http_protocol import Connections, LimitedProtocol

FLUSH_S = 5
"""Time to write the responses of requests that have ended."""
_TICKS = 10
"""Of uvicorn's main loop, in a second."""


class HttpServer(uvicorn.Server):
    """uvicorn with limits on connections, and without its signal handlers, which raise the signal
    again once it has stopped.
    """

    def __init__(self, app: Any, connections: Connections) -> None:
        protocol: Any = partial(LimitedProtocol, shared=connections)
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=FLUSH_S,
        )
        super().__init__(config)
        self._connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the gateway."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Close stalled connections, once a second."""
        if counter % _TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            self._connections.check(self.server_state.connections, now_s)
        return await super().on_tick(counter)
