"""A streamed response: one task produces its chunks, the protocol reads them.

The producing task holds the request's admission and its calls, so a slow reader keeps no slot busy,
and closing the stream ends the calls at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from serving.gateway.answers import Timings
from serving.planning.streaming import merged
from triptych.messages import Chunk


class ChunkStream:
    """One request's chunks. Created and used on one event loop.

    Args:
        produce: Sends chunks to the stream it is given; starts at once.
    """

    def __init__(self, produce: Callable[[ChunkStream], Awaitable[None]]) -> None:
        self.timings: Timings | None = None
        """Where the time until the first chunk went."""
        self.has_sent = False
        """Whether any chunk is for the reader: the request can no longer be prepared again."""
        self.is_second_attempt = False
        """Whether the request was prepared again, for another version of the model."""
        self._ready: list[Chunk] = []
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(produce(self))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def first(self) -> None:
        """Wait for the first chunk; an error before it can still become a status.

        Raises:
            ServingError: there will be no chunk.
        """
        await self._changed.wait()
        if not self._ready and self._task.done():
            self._task.result()

    async def batches(self) -> AsyncIterator[list[Chunk]]:
        """Chunks that are ready together, until the end.

        Raises:
            ServingError: the request failed; the chunks before remain valid.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_done = self._task.done()
            ready, self._ready = self._ready, []
            if ready:
                yield merged(ready)
            if is_done:
                self._task.result()
                return

    async def close(self) -> None:
        """Cancel the work if it is not done, and wait until it has released its resources."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # `batches` has raised it, or the reader has disconnected

    def send(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks for the reader; returns at once."""
        self._ready.extend(chunks)
        if self._ready:
            self.has_sent = True
            self._changed.set()
