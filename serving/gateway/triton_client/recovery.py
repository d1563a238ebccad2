"""Sends calls again whose model's process ended while they were in flight (D102).

A call waits until its model is up, on any server, and is sent once more, at most twice. The second
time it is sent alone, for a second at least: if the process ends once more, it is the only suspect.
Then, or if it was alone at one of two ends by chance, it is put in quarantine. A call that was in
flight together with others is never blamed for that alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from inference.errors import Quarantined, Unavailable
from inference.tasks.shared.model_calls import Call, GenerateCall
from serving.gateway.observability.metrics import Metrics
from serving.gateway.triton_client.inference import Inference

# Requests that end their model's process repeatedly are refused for a while, by content (D102).
# Else one request, sent again and again, would take every process of a model.

KEEP_S = 300.0
MAX_CALLS = 256
"""Remembered at once; beyond, the oldest is forgotten."""
_INCIDENTAL = {"seed", "priority", "deadline_ms", "stream", "generated_ids"}
"""Options that do not make it another request."""


class Quarantine:
    """Calls that are refused. Used on one event loop.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s: dict[bytes, float] = {}
        """Hash of a call → when it is accepted again; the oldest first."""

    def check(self, call: Call) -> None:
        """Refuses a call that was added.

        Raises:
            Quarantined: it is not accepted yet.
        """
        now_s = self._clock()
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            del self._until_s[next(iter(self._until_s))]
        if self._until_s and _digest(call) in self._until_s:
            raise _refusal(call)

    def add(self, call: Call) -> Quarantined:
        """Refuses this call from now on; returns the error of its request."""
        digest = _digest(call)
        self._until_s.pop(digest, None)
        while len(self._until_s) >= MAX_CALLS:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[digest] = self._clock() + KEEP_S
        return _refusal(call)


def _refusal(call: Call) -> Quarantined:
    return Quarantined(
        f"the process of {call.model} ended each time that it ran this request: it is refused for "
        f"{KEEP_S / 60:.0f} minutes; change it, and report it with the server's log"
    )


def _digest(call: Call) -> bytes:
    """A hash of what a call sends to its model."""
    found = blake2b(call.model.encode(), digest_size=16)
    for name, array in sorted(call.inputs.items()):
        found.update(f"\0{name}{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    if isinstance(call, GenerateCall):
        found.update(call.options.model_dump_json(exclude=_INCIDENTAL).encode())
    return found.digest()


MAX_RESENDS = 2
ALONE_S = 1.0
"""Time for which a suspect has its model for itself; further calls of the gateway wait."""
POLL_S = 0.1
"""Of a model that is expected to be up again."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class Recovery:
    """Runs calls and sends lost ones again. Used on one event loop.

    Args:
        inference: Reports whether a model is up.
        timeout_s: For which a call waits for its model; 0: lost calls fail at once.
        metrics: Calls that are sent again are counted there.
        elsewhere: The requests of the gateway's other processes: with any, no call is alone.

    Attributes:
        quarantine: What is refused.
    """

    def __init__(
        self,
        inference: Inference,
        timeout_s: float,
        metrics: Metrics,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        self.quarantine = Quarantine()
        self._inference = inference
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._elsewhere = elsewhere
        self._by_model: defaultdict[str, _ModelCalls] = defaultdict(_ModelCalls)
        self._polls: dict[tuple[str, int], asyncio.Task[int | None]] = {}

    async def run(
        self, call: Call, timeout_s: float, attempt: Callable[[float], Awaitable[T]]
    ) -> T:
        """The result of an attempt at a call.

        Args:
            timeout_s: Of all attempts.
            attempt: Runs the call within a number of seconds.

        Raises:
            Quarantined: the process of the model ended because of this call.
            ServingError: the call failed, or the model was not up again in time.
        """
        self.quarantine.check(call)
        calls = self._by_model[call.model]
        until_s = time.monotonic() + timeout_s
        if (call.model, call.version) in self._polls:  # known not to be up: nothing is sent
            down = Unavailable(f"{call.model} is not up: try again", retry_after_s=1)
            await self._await_up(call, down, until_s)
        losses, was_alone, failure = 0, False, None
        wait_until_s = math.inf
        while True:
            is_alone = losses >= MAX_RESENDS
            if failure is not None and not is_alone:
                await self._await_up(call, failure, until_s)
            async with calls.turn(is_alone=is_alone) as begin:
                if failure is not None and is_alone:
                    await self._await_up(call, failure, until_s)
                begin()
                with calls.in_flight() as sent:
                    try:
                        return await attempt(max(0.001, until_s - time.monotonic()))
                    except Unavailable as error:
                        failure = error
            if not self._timeout_s:
                raise failure
            if failure.is_moved:
                wait_until_s = math.inf
            elif not failure.is_loss:
                wait_until_s = min(wait_until_s, time.monotonic() + self._timeout_s)
                if time.monotonic() >= wait_until_s:
                    raise failure
            else:
                losses, wait_until_s = losses + 1, math.inf
                was_alone |= not (sent.is_shared or self._elsewhere())
                if losses > 1 and was_alone:
                    self._metrics.quarantined_calls.labels(call.model).inc()
                    log.error(
                        "a request ended the process of its model %d times and is refused for a "
                        "while",
                        losses,
                        extra={"model": call.model},
                    )
                    raise self.quarantine.add(call) from failure
                if losses > MAX_RESENDS:
                    raise failure
            self._metrics.resent_calls.labels(call.model).inc()

    async def once(self, call: Call, timeout_s: float, attempt: Awaitable[T]) -> T:
        """The result of an attempt at several calls as one, which its caller sends again apart.

        Raises:
            Unavailable: the call is lost, and its model is up again.
        """
        calls = self._by_model[call.model]
        until_s = time.monotonic() + timeout_s
        try:
            async with calls.turn(is_alone=False):
                with calls.in_flight():
                    return await attempt
        except Unavailable as failure:
            await self._await_up(call, failure, until_s)
            raise

    def close(self) -> None:
        """Stop waiting for models."""
        for poll in self._polls.values():
            poll.cancel()

    async def _await_up(self, call: Call, failure: Unavailable, until_s: float) -> None:
        """Wait until the called version is up again.

        Raises:
            Unavailable: the failure, if it is not in time; `is_not_loaded`, if another version is
                served.
        """
        key = call.model, call.version
        if (poll := self._polls.get(key)) is None:
            poll = self._polls[key] = asyncio.create_task(self._poll(*key))
            poll.add_done_callback(lambda _: self._polls.pop(key, None))
        try:
            async with asyncio.timeout(max(0.001, until_s - time.monotonic())):
                served = await asyncio.shield(poll)
        except TimeoutError:
            raise failure from None
        if served != call.version:
            failure.is_not_loaded = served is not None
            raise failure

    async def _poll(self, model: str, version: int) -> int | None:
        """This version once it is up again, or the one in its place; None: none in time.

        Shared by all calls that wait.
        """
        until_s = time.monotonic() + self._timeout_s
        while time.monotonic() < until_s:
            if await self._inference.is_ready(model, version):
                return version
            served = await self._inference.served_version(model)
            if served not in (None, version):
                return served
            await asyncio.sleep(POLL_S)
        return None


@dataclass(eq=False)
class _CallInFlight:
    """A call in flight; `is_shared` once another was in flight at the same time."""

    is_shared: bool


class _ModelCalls:
    """The calls of one model."""

    def __init__(self) -> None:
        self._present: set[_CallInFlight] = set()
        self._alone = asyncio.Lock()

    @contextmanager
    def in_flight(self) -> Iterator[_CallInFlight]:
        """Count a call as in flight."""
        if len(self._present) == 1:  # more have been marked
            next(iter(self._present)).is_shared = True
        entry = _CallInFlight(bool(self._present))
        self._present.add(entry)
        try:
            yield entry
        finally:
            self._present.discard(entry)

    @asynccontextmanager
    async def turn(self, *, is_alone: bool) -> AsyncIterator[Callable[[], object]]:
        """A turn; within it, what is yielded is called when the call is sent."""
        if not is_alone:
            if self._alone.locked():
                async with self._alone:
                    pass
            yield lambda: None
            return
        await self._alone.acquire()
        with ExitStack() as held:
            held.callback(self._alone.release)
            loop = asyncio.get_running_loop()
            yield lambda: loop.call_later(ALONE_S, held.close)
