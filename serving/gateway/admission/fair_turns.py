"""Turns that go to the API key with the fewest, so that one key cannot hold up the others."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from dataclasses import dataclass

from serving.gateway.admission.counts import Turns


@dataclass(eq=False)
class _Caller:
    key: str
    ready: asyncio.Future[None]


class FairTurns:
    """A bounded number of turns. Used on one event loop.

    A free turn goes to the key that has the fewest, and within a key first come, first served.
    Callers without a key get turns in their order. With several workers, each divides the turns
    that it gets.

    Args:
        turns: What is divided.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held: Counter[str] = Counter()
        self._waiting: list[_Caller] = []
        self._giving: asyncio.Task[None] | None = None

    async def acquire(self, key: str | None) -> None:
        """Wait for a turn.

        Args:
            key: Name of the caller's key, if there is one.
        """
        if key is None:
            await self._turns.acquire()
            return
        caller = _Caller(key, asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        if self._giving is None:
            self._giving = asyncio.create_task(self._give(), context=contextvars.Context())
        try:
            await caller.ready
        except asyncio.CancelledError:
            if caller in self._waiting:
                self._waiting.remove(caller)
            else:  # it had just been given
                self.release(key)
            raise

    def release(self, key: str | None) -> None:
        """Give a turn back.

        Args:
            key: As for `acquire`.
        """
        if key is not None:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
        self._turns.release()

    async def _give(self) -> None:
        """Take free turns for the callers that wait, until there are none."""
        try:
            while self._waiting:
                await self._turns.acquire()
                able = [caller for caller in self._waiting if not caller.ready.done()]
                if not able:
                    self._turns.release()
                    await asyncio.sleep(0)  # cancelled callers leave
                    continue
                caller = min(able, key=lambda each: self._held[each.key])
                self._waiting.remove(caller)
                self._held[caller.key] += 1
                caller.ready.set_result(None)
        finally:
            self._giving = None
