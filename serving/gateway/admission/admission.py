"""Admission control: limits on concurrent requests and tokens, and turns at Triton.

A request over a limit gets 429 at once. The calls of admitted requests take turns, divided
fairly among keys (`FairTurns`), so that neither a long paragraph nor one key can fill the queue of
Triton, which has no bound. During shutdown admitted requests may finish; those that do not are
aborted.

A gateway of one process counts in its own memory (`LocalCounts`), one of several workers in memory
that they share (`serving.gateway.server.shared_counts`), several gateways in a store
(`serving.gateway.admission.redis_counts`).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from inference.errors import InvalidRequest, Overloaded, PayloadTooLarge, ServingError, Unavailable
from serving.gateway.admission.auth import KEY, Resource, key_name
from serving.gateway.observability.metrics import Load
from triptych.task import IMAGES


@dataclass
class Usage:
    """What is in use now."""

    requests: int = 0
    tokens: int = 0
    pixels: int = 0
    bytes: int = 0

    def add(self, other: Usage) -> None:
        """Add another's numbers."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.pixels += other.pixels
        self.bytes += other.bytes


class Turns:
    """A bounded number of turns: those of one process. Used on its event loop.

    Args:
        limit: Turns in all.
    """

    poll_s: float | None = None
    """Between two looks for a free turn, while callers wait, where other processes free them."""

    def __init__(self, limit: int) -> None:
        self.free = limit

    def take(self, since_s: float) -> bool:
        """Take a turn, if there is one for a caller of this process.

        Args:
            since_s: Monotonic time since which the caller counts as waiting.
        """
        is_free = self.free > 0
        self.free -= is_free
        return is_free

    def release(self) -> None:
        """Give a turn back."""
        self.free += 1

    def stop_waiting(self) -> None:
        """Say that no caller of this process waits any more."""


class Counts(ABC):
    """Counts of the whole gateway. Used on one event loop of each process.

    To respect a limit, count first, then compare the total, and take the own share back if it is
    too much: of two processes that count at the same moment at least one sees the other.
    """

    @abstractmethod
    def add(self, key: str | None, usage: Usage) -> None:
        """Count, or take back with negative numbers.

        Args:
            key: Name of the API key whose share this is, if there is one.
        """

    @abstractmethod
    def total(self) -> Usage:
        """All that is in use."""

    @abstractmethod
    def of_key(self, name: str) -> Usage:
        """What the requests of one key use."""

    async def of_key_everywhere(self, name: str) -> Usage:
        """The same, with what they use at other gateways if these share a store."""
        return self.of_key(name)

    def requests_elsewhere(self) -> int:
        """Requests of the gateway's other processes."""
        return 0

    @abstractmethod
    def load(self, queued: int) -> Load:
        """What is in use, for `/metrics`.

        Args:
            queued: Calls of this process that wait to be sent to Triton.
        """

    @abstractmethod
    def turns(self, limit: int) -> Turns:
        """The gateway's turns at Triton."""


class LocalCounts(Counts):
    """The counts of a gateway that is one process."""

    def __init__(self) -> None:
        self._total = Usage()
        self._keys: dict[str, Usage] = {}
        """By name; of those that have requests."""

    def add(self, key: str | None, usage: Usage) -> None:
        """Count, or take back."""
        self._total.add(usage)
        if key is None:
            return
        own = self._keys.setdefault(key, Usage())
        own.add(usage)
        if own == Usage():
            del self._keys[key]

    def total(self) -> Usage:
        """All that is in use."""
        return self._total

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use."""
        return self._keys.get(name, Usage())

    def load(self, queued: int) -> Load:
        """What is in use; nothing waits elsewhere."""
        return Load(queued=queued, tokens=self._total.tokens)

    def turns(self, limit: int) -> Turns:
        """Turns of this process."""
        return Turns(limit)


class FairTurns:
    """A bounded number of turns. Used on one event loop.

    A free turn goes to the key that has the fewest. Within a key, and without keys, callers are
    ordered by arrival and priority as in the engine (`inference.engine.scheduler`). With several
    workers, each divides the turns that it gets.

    Args:
        turns: What is divided.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held: Counter[str | None] = Counter()
        self._waiting: dict[str | None, list[tuple[float, asyncio.Future[None]]]] = {}
        """By key, in order: since when each caller counts as waiting, and its turn."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Callers without a turn."""
        return sum(not ready.cancelled() for own in self._waiting.values() for _, ready in own)

    @asynccontextmanager
    async def turn(self, priority: int) -> AsyncIterator[None]:
        """A turn of the key of the current task's request."""
        key = key_name()
        await self.acquire(key, priority)
        try:
            yield
        finally:
            self.release(key)

    async def acquire(self, key: str | None, priority: int = 0) -> None:
        """Wait for a turn.

        Args:
            key: Name of the caller's key, if there is one.
            priority: Head start, in seconds.
        """
        since_s = time.monotonic() - priority
        if not self._waiting and self._turns.take(since_s):
            self._held[key] += 1
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        insort(self._waiting.setdefault(key, []), (since_s, ready), key=itemgetter(0))
        self._look_later()
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled():  # it had just been given
                self.release(key)
            else:
                self._hand_out()
            raise

    def release(self, key: str | None) -> None:
        """Give a turn back; `key` as for `acquire`."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._turns.release()
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free turns to the callers that wait."""
        while self._waiting:
            key = min(self._waiting, key=self._held.__getitem__)
            callers = self._waiting[key]
            since_s, ready = callers[0]
            if not ready.cancelled():
                if not self._turns.take(since_s):
                    self._look_later()
                    return
                self._held[key] += 1
                ready.set_result(None)
            del callers[0]
            if not callers:
                del self._waiting[key]
        self._turns.stop_waiting()

    def _look_later(self) -> None:
        if self._timer is None and (poll_s := self._turns.poll_s) is not None:
            self._timer = asyncio.get_running_loop().call_later(poll_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._hand_out()


RETRY_AFTER_S = 1.0
FREE_BYTES = 65_536
"""Of each body, which are not counted: the number of connections bounds them."""
_WHAT = {"pixels": "images of ", "bytes": "bodies of "}
Reserve = Callable[[int], None]
"""Reserves that many pixels, or bytes, in all for a request; raises as `Admission.pixels` and
`Admission.body` say."""


class Admission:
    """Requests, tokens and turns of one gateway. Used on its event loop only.

    The limits of the key whose request the current task serves (`auth.KEY`) come before all others.

    Args:
        max_requests: Admitted at once.
        max_tokens: Input tokens of all admitted calls.
        max_pixels: Pixels of the images of all admitted requests.
        max_bytes: Of the bodies of all requests, admitted or not, beyond `FREE_BYTES` of each.
        max_sequences: Calls running at Triton at once.
        counts: What is admitted now, by this process and by others; by default there are none.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_tokens: int,
        max_pixels: int,
        max_bytes: int,
        max_sequences: int,
        counts: Counts | None = None,
    ) -> None:
        self._most: dict[Resource, int] = {
            "requests": max_requests,
            "tokens": max_tokens,
            "pixels": max_pixels,
            "bytes": max_bytes,
        }
        self._counts = counts or LocalCounts()
        self._turns = FairTurns(self._counts.turns(max_sequences))
        self._stream_turns = FairTurns(Turns(max_sequences - max_sequences // 8))
        """Streams leave some turns to others: their readers may be slow."""
        self._admitted: set[asyncio.Task[Any]] = set()
        """Those that serve a request, in this process."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Calls of this process that wait for their turn."""
        return self._turns.waiting + self._stream_turns.waiting

    def check(self, counted: int = 0) -> None:
        """Refuse a request that could not be admitted now, before its body is parsed.

        Args:
            counted: Requests of the caller that are counted already.

        Raises:
            Overloaded: too many requests, of this key or in all.
            Unavailable: the gateway has been shut down.
        """
        if self._is_closed:
            raise _shutting_down()
        self._check("requests", 1, counted)

    def _limits(self, resource: Resource) -> Sequence[tuple[int, str | None, str]]:
        """Limits of a resource, each with the name of its key, if it has one, and its owner."""
        key, most = KEY.get(), (self._most[resource], None, "")
        if key is None or (limit := key.limit(resource)) is None:
            return (most,)
        return (limit, key.name, " with this key"), most

    def _check(self, resource: Resource, size: int, counted: int) -> None:
        """Refuse a request that uses more of a resource than is free.

        Args:
            counted: How much of its `size` is counted already.
        """
        for limit, key, whose in self._limits(resource):
            if size > limit:
                raise _too_large(resource, size, limit, whose)
            used = self._counts.total() if key is None else self._counts.of_key(key)
            others = getattr(used, resource) - counted
            if others + size > limit:
                what = f"{_WHAT.get(resource, '')}{others} {resource}{whose} are being served"
                raise _overloaded(what, limit)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Admission of a request, which the current task serves, and for which `drained` waits.

        Raises:
            Overloaded: too many requests.
            Unavailable: the gateway was shut down meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        key = key_name()
        self._counts.add(key, Usage(requests=1))
        try:
            self.check(counted=1)
            self._admitted.add(task)
            self._idle.clear()
            yield
        except asyncio.CancelledError:  # by `abort_all`
            if not self._is_closed:
                raise
            task.uncancel()
            raise _shutting_down() from None
        finally:
            self._admitted.discard(task)
            if not self._admitted:
                self._idle.set()
            self._counts.add(key, Usage(requests=-1))

    async def wait_until_drained(self, timeout_s: float) -> bool:
        """Wait until no request of this process is admitted; False if the time is up before."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> int:
        """End every request of this process with an error; how many there were. Idempotent."""
        self._is_closed = True
        for task in self._admitted:
            task.cancel()
        return len(self._admitted)

    @contextmanager
    def reserve_tokens(self, tokens: int) -> Iterator[None]:
        """Reservation of the tokens of a request's calls.

        Raises:
            InvalidRequest: more than the limit.
            Overloaded: more than are free now, for this key or in all.
        """
        for limit, _, whose in self._limits("tokens"):
            if tokens > limit:
                raise _too_large("tokens", tokens, limit, whose)
        key = key_name()
        self._counts.add(key, Usage(tokens=tokens))
        try:
            self._check("tokens", tokens, tokens)
            yield
        finally:
            self._counts.add(key, Usage(tokens=-tokens))

    @contextmanager
    def pixels(self) -> Iterator[Reserve]:
        """Reservation of the pixels of the current request, once it has been admitted.

        A request that is prepared again reserves them once.

        Raises:
            InvalidRequest: more than the limit.
            Overloaded: more than are free now, for this key or in all.
        """
        key = key_name()
        held = 0

        def reserve(pixels: int) -> None:
            nonlocal held
            more = max(0, pixels - held)
            self._counts.add(key, Usage(pixels=more))
            try:
                self._check("pixels", pixels, pixels)
            except ServingError:
                self._counts.add(key, Usage(pixels=-more))
                raise
            held += more

        try:
            yield reserve
        finally:
            if held:
                self._counts.add(key, Usage(pixels=-held))

    @contextmanager
    def body(self) -> Iterator[Reserve]:
        """Reservation of the bytes of the current request's body, until the request has ended.

        Raises:
            PayloadTooLarge: more than the limit.
            Overloaded: more than are free now, for this key or in all.
        """
        owner: str | None = None
        held = 0

        def hold(key: str | None, size: int) -> None:
            nonlocal owner, held
            if size != held or key != owner:
                self._counts.add(key, Usage(bytes=size))
                self._counts.add(owner, Usage(bytes=-held))
                owner, held = key, size

        def reserve(size: int) -> None:
            key, before = key_name(), held
            counted = max(0, size - FREE_BYTES)
            hold(key, counted)
            try:
                if counted:
                    self._check("bytes", counted, counted)
            except ServingError:
                hold(key, before)
                raise

        try:
            yield reserve
        finally:
            hold(None, 0)

    async def agree(self, *resources: Resource) -> None:
        """Compare what the current request's key uses at all gateways with the key's limits.

        Called once what is compared has been reserved here; returns at once if the key has no
        limit on it (D85).

        Raises:
            Overloaded: other gateways leave too little.
        """
        key = KEY.get()
        if key is None:
            return
        limits = {each: limit for each in resources if (limit := key.limit(each)) is not None}
        if not limits:
            return
        used = await self._counts.of_key_everywhere(key.name)
        for each, limit in limits.items():
            if (number := getattr(used, each)) > limit:
                what = f"{number} {each} with this key would be served by all gateways together"
                raise _overloaded(what, limit)

    def turn(self, priority: int) -> AbstractAsyncContextManager[None]:
        """One call's turn at Triton, as `FairTurns` divides them."""
        return self._turns.turn(priority)

    @asynccontextmanager
    async def stream_turn(self, priority: int) -> AsyncIterator[None]:
        """The turn of a call whose client reads its result while it runs."""
        async with self._stream_turns.turn(priority), self.turn(priority):
            yield


def _shutting_down() -> Unavailable:
    return Unavailable("the gateway was shut down: try another", retry_after_s=1)


def _overloaded(what: str, limit: int) -> Overloaded:
    return Overloaded(f"{what}, at most {limit} at once: try again", retry_after_s=RETRY_AFTER_S)


def _too_large(resource: Resource, size: int, limit: int, whose: str) -> ServingError:
    """The error of a request that alone exceeds a limit."""
    taken = f"are taken{whose}"
    if resource == "bytes":
        return PayloadTooLarge(
            f"the body has more than {limit + FREE_BYTES} bytes, the most that {taken} at once: "
            "send several requests"
        )
    if resource == "pixels":
        return InvalidRequest(
            f"the request's images have {size} pixels in all, at most {limit} {taken} at once: "
            "send several requests",
            field=IMAGES,
        )
    return InvalidRequest(
        f"the request has {size} tokens in all, at most {limit} {taken}: send several requests"
    )
