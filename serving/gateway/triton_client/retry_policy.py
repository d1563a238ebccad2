"""What becomes of a call that fails because a model, its process or its server is not there (D102).

| failure of the call | tokens of it were returned | another server has its version | act |
|---|---|---|---|
| refused: nothing was started | no | yes | `OTHER_SERVER`, at once |
| refused | no | no | `WAIT`, for the time to recover at most, then `RAISE` |
| refused | yes | either | likewise |
| lost: its process or server ended | either | either | `WAIT`; the third time `RAISE` |
| lost a second time, once alone | either | either | `QUARANTINE` |
| lost by a stream that had got tokens since it was sent | yes | either | `WAIT`, 4 times |
| moved: its server shuts down | either | yes | `WAIT`, which another server ends at once |
| another version is served (`is_not_loaded`) | no | no | `RAISE`; then it is planned again |

Where nothing is recovered, all but `OTHER_SERVER` is `RAISE`. After a wait the call is sent to any
server: a stream goes on behind its tokens, others begin anew.

`plan_runner` plans for the version that has replaced another: the whole request, once, while
nothing of its response was returned; then the sequences of its stream that have not begun, each
`MAX_SWITCHES` times at most.

The last time a call is sent alone, for a second at least: if the process ends once more, it is the
only suspect. Then, or if it was alone at one of two ends by chance, it is put in quarantine. A call
that was in flight together with others is never blamed for that alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b

import numpy as np

from inference.errors import Quarantined, Unavailable
from inference.tasks.shared.model_calls import Call, GenerateCall
from serving.gateway.triton_client.endpoint import Endpoint

MAX_RESENDS = 2
MAX_INTERRUPTIONS = 4
"""Losses of a stream that do not count, because it had got tokens since it was sent."""
ALONE_S = 1.0
"""Time for which a suspect has its model for itself; further calls of the gateway wait."""


class Act(Enum):
    """What a failure leads to."""

    RAISE = auto()
    OTHER_SERVER = auto()
    WAIT = auto()
    """Until the model is up; then the call is sent again."""
    QUARANTINE = auto()


class RetryPolicy:
    """Decides about the failures of one call, by the table above.

    Args:
        timeout_s: Of all attempts.
        wait_s: For which the call waits for its model; 0: lost calls fail at once.
        clock: Seconds.

    Attributes:
        tried: The servers that the call was sent to since it last waited.
        has_begun: Whether tokens of the last attempt were returned.
        has_advanced: Whether the call also goes on behind them.
        losses: How often the call was lost.
    """

    def __init__(
        self, timeout_s: float, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tried: list[Endpoint] = []
        self.has_begun = self.has_advanced = False
        self.losses = 0
        self._was_alone = False
        self._interruptions = 0
        self._wait_s = wait_s
        self._clock = clock
        self._until_s = clock() + timeout_s
        self._give_up_s = math.inf

    @property
    def left_s(self) -> float:
        """Time that is left to the call."""
        return max(0.001, self._until_s - self._clock())

    @property
    def is_suspect(self) -> bool:
        """Whether the call has to be sent alone."""
        return self.losses >= MAX_RESENDS

    def act(self, failure: Unavailable, *, has_others: bool, was_alone: bool) -> Act:
        """What a failure leads to.

        Args:
            has_others: Whether a server that was not tried has the version of the call.
            was_alone: Whether no other call of the model was in flight beside it.
        """
        is_refusal = not (failure.is_loss or failure.is_moved)
        if is_refusal and has_others and not self.has_begun:
            return Act.OTHER_SERVER
        self.tried.clear()
        if not self._wait_s:
            return Act.RAISE
        if is_refusal:
            self._give_up_s = min(self._give_up_s, self._clock() + self._wait_s)
            return Act.RAISE if self._clock() >= self._give_up_s else Act.WAIT
        self._give_up_s = math.inf
        if failure.is_moved:
            return Act.WAIT
        if self.has_advanced and self._interruptions < MAX_INTERRUPTIONS:
            self._interruptions += 1
            return Act.WAIT
        self.losses += 1
        self._was_alone |= was_alone
        if self.losses > 1 and self._was_alone:
            return Act.QUARANTINE
        return Act.RAISE if self.losses > MAX_RESENDS else Act.WAIT


@dataclass(eq=False)
class _CallInFlight:
    """A call in flight; `is_shared` once another was in flight at the same time."""

    is_shared: bool


class ModelCalls:
    """The calls of one model. Used on one event loop."""

    def __init__(self) -> None:
        self._present: set[_CallInFlight] = set()
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def turn(
        self, await_up: Callable[[], Awaitable[None]], *, is_alone: bool
    ) -> AsyncIterator[_CallInFlight]:
        """The turn of a call, which is in flight within it.

        Args:
            await_up: Waits for the model; a call that is sent alone lets none pass meanwhile.
        """
        if not is_alone:
            await await_up()
            if self._alone.locked():
                async with self._alone:
                    pass
            with self._in_flight() as sent:
                yield sent
            return
        await self._alone.acquire()
        with ExitStack() as held:
            held.callback(self._alone.release)
            await await_up()
            asyncio.get_running_loop().call_later(ALONE_S, held.close)
            with self._in_flight() as sent:
                yield sent

    @contextmanager
    def _in_flight(self) -> Iterator[_CallInFlight]:
        if len(self._present) == 1:  # more have been marked
            next(iter(self._present)).is_shared = True
        entry = _CallInFlight(bool(self._present))
        self._present.add(entry)
        try:
            yield entry
        finally:
            self._present.discard(entry)


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
