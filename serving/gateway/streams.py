"""A request that is answered piece by piece: produced by a task of its own, read by its protocol.

The task holds the request's place in the house and its calls, not the reader: whoever reads slowly
keeps no slot busy, and closing the stream ends the calls at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from serving.gateway.plans import Timings
from serving.tasks.stream import merged
from triptych.messages import Chunk


class PieceStream:
    """One request's pieces. Made and used on one event loop.

    Args:
        produce: Does the work and tells this stream its pieces; begins at once.
    """

    def __init__(self, produce: Callable[[PieceStream], Awaitable[None]]) -> None:
        self.timings: Timings | None = None
        """Where the time until the first piece went."""
        self._ready: list[Chunk] = []
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(produce(self))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def begun(self) -> None:
        """Waits for the first piece; until then nothing has been promised to the reader.

        Raises:
            TriptychError: there will be none.
        """
        await self._changed.wait()
        if not self._ready and self._task.done():
            self._task.result()

    async def batches(self) -> AsyncIterator[list[Chunk]]:
        """Pieces that are ready together, until the end.

        Raises:
            TriptychError: the request failed; what has been told stands.
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
        """End the work, if it is not done; waits until it has let go of everything."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # whoever reads was told; nobody else asks

    def tell(self, pieces: Iterable[Chunk]) -> None:
        """Adds pieces for the reader; returns at once."""
        self._ready.extend(pieces)
        if self._ready:
            self._changed.set()
