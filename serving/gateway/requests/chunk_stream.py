"""A streamed response: one task produces its chunks, the protocol reads them.

The producing task holds the request's admission and its calls. It is at most `MAX_UNREAD` chunks
ahead of the reader, and holds the admission until the reader has closed the stream, which ends the
calls at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from serving.gateway.observability.metrics import Timings
from triptych.messages import Chunk

MAX_UNREAD = 1024
"""Chunks that wait for the reader; the producer waits with further ones."""


class ChunkStream:
    """One request's chunks. Created and used on one event loop.

    Args:
        produce: Sends chunks to the stream it is given; starts at once.
    """

    def __init__(self, produce: Callable[[ChunkStream], Awaitable[None]]) -> None:
        self.timings: Timings | None = None
        """Where the time until the first chunk went."""
        self.has_sent = False
        """Whether any chunk is for the reader: the request can no longer be planned again."""
        self._ready: list[Chunk] = []
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_complete = False
        """Whether all chunks are there, or `_error` is."""
        self._error: Exception | None = None
        self._task = asyncio.ensure_future(produce(self))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def first(self) -> None:
        """Wait for the first chunk; an error before it can still become a status.

        Raises:
            ServingError: there will be no chunk.
        """
        await self._changed.wait()
        if not self._ready:
            self._raise()

    async def batches(self) -> AsyncIterator[list[Chunk]]:
        """Chunks that are ready together, until the end.

        Raises:
            ServingError: the request failed; the chunks before remain valid.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_over = self._is_complete or self._task.done()
            ready, self._ready = self._ready, []
            self._has_room.set()
            if ready:
                yield merge(ready)
            if is_over:
                self._raise()
                return

    async def close(self) -> None:
        """Cancel the work if it is not done, and wait until it has released its resources."""
        self._closed.set()
        if not self._is_complete:
            self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # `batches` has raised it, or the reader has disconnected

    async def send(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks for the reader; waits while it is too far behind."""
        self._ready.extend(chunks)
        if self._ready:
            self.has_sent = True
            self._changed.set()
        while len(self._ready) >= MAX_UNREAD:
            self._has_room.clear()
            await self._has_room.wait()

    async def finish(self, work: Awaitable[object]) -> None:
        """Await the work that sends the chunks, then until the reader has closed the stream.

        Called by the producer, whose admission lasts as long. The work's error is the reader's.
        """
        try:
            await work
        except Exception as error:
            self._error = error
        self._is_complete = True
        self._changed.set()
        await self._closed.wait()

    def _raise(self) -> None:
        """Raise what ended the stream, if that is an error."""
        if self._error is not None:
            raise self._error
        if self._task.done():
            self._task.result()


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks that are ready together, one an item where that changes nothing but their number.

    An error, which ends its item, stays a chunk of its own: the text before it is sent as such.
    """
    last: dict[tuple[int, bool], Chunk] = {}
    for chunk in chunks:
        place = chunk.index, chunk.error is not None
        before = last.pop(place, None)
        last[place] = chunk if before is None else _concatenate(before, chunk)
    return list(last.values())


def _concatenate(first: Chunk, second: Chunk) -> Chunk:
    logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return second.model_copy(
        update={"text": first.text + second.text, "logprobs": logprobs or None}
    )
