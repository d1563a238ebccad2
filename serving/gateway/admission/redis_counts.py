"""What each key uses at several gateways, in Redis or Valkey: limits by key then hold for all.

A row for each key (a hash) has a field for each process of a gateway: what the key's requests use
there, and until when that is true. A process writes its own field and reads the others in one
transaction, so that of two which count at the same moment the second sees the first. A field is an
absolute number and has a lease: what a process that was killed had admitted is free again after
`LEASE_S`, and a server that lost its data has it again after `BEAT_S`.

Without the server the limits hold for each gateway alone, and no request waits for it (D85).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from urllib.parse import urlsplit
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from serving.gateway.admission.admission import Counts, LocalCounts, Turns, Usage
from serving.gateway.observability.metrics import Load, Metrics

log = logging.getLogger(__name__)

PREFIX = "triptych:limits:"
"""Of the row of a key; its name follows."""
LEASE_S = 10.0
BEAT_S = 2.0
"""Between two renewals of the leases, or two attempts to reach the server."""
TIMEOUT_S = 0.5
"""Of one exchange; a server that takes longer is left alone until the next beat."""
_FRESH_S = 0.2
"""For which what was read of other processes refuses requests without reading it again."""
_FORGET_S = 60.0
"""After the end of a lease, until others delete it."""


class RedisCounts(Counts):
    """The counts of a process, and of each key those of all other processes, of any gateway.

    Args:
        server: Closed by `run`.
        name: The server's, in logs and metrics.
        inner: Counts of this gateway: all that is not by key, and the keys' while the server is
            away.
        metrics: Shows whether the server responds.
    """

    def __init__(self, server: Redis, name: str, inner: Counts, metrics: Metrics) -> None:
        self._server = server
        self._name = name
        self._inner = inner
        self._own = LocalCounts()
        """Of this process."""
        self._metrics = metrics
        self._process = uuid4().hex
        self._offset_s: float | None = None
        """From this process's monotonic clock to the server's; None while the server is away."""
        self._is_lost: bool | None = None
        """None: the server has not been tried."""
        self._others: dict[str, tuple[float, Usage]] = {}
        """Key → when it was read, and what its requests use in other processes."""
        self._published: set[str] = set()
        """Keys that have, or are to have, a field of this process."""
        self._changed: set[str] = set()
        """Of these, those whose field differs from what is in use."""
        self._expired: set[tuple[str, str]] = set()
        """Row and field of processes that ended long ago."""
        self._wake = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        """Done when what has changed by now has been exchanged."""

    @classmethod
    def at(cls, url: str, inner: Counts, metrics: Metrics) -> RedisCounts:
        """Counts at an address: `redis://`, `rediss://` or `unix://`.

        Raises:
            ValueError: it is not valid.
        """
        server = Redis.from_url(
            url,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
        return cls(server, _address(url), inner, metrics)

    def add(self, key: str | None, usage: Usage) -> None:
        """Count in this process, or take back; other processes see it a moment later."""
        self._inner.add(key, usage)
        self._own.add(key, usage)
        if key in self._published:
            self._publish(key)

    def total(self) -> Usage:
        """All that is in use at this gateway: limits in all protect it, and are its own."""
        return self._inner.total()

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use; at other gateways, if that was read just now."""
        read_s, others = self._others.get(name, (0.0, Usage()))
        if time.monotonic() - read_s > _FRESH_S:
            return self._inner.of_key(name)
        return self._add_own(name, others)

    async def of_key_everywhere(self, name: str) -> Usage:
        """What they use at all gateways; at this one alone while the server is away."""
        self._published.add(name)
        if self._offset_s is not None:
            self._next = self._next or asyncio.get_running_loop().create_future()
            self._publish(name)
            await asyncio.shield(self._next)
        _, others = self._others.get(name, (0.0, Usage()))
        return self._add_own(name, others)

    def requests_elsewhere(self) -> int:
        """Requests of this gateway's other processes."""
        return self._inner.requests_elsewhere()

    def load(self, queued: int) -> Load:
        """What is in use at this gateway."""
        return self._inner.load(queued)

    def turns(self, limit: int) -> Turns:
        """The turns of this gateway."""
        return self._inner.turns(limit)

    async def run(self) -> None:
        """Exchange counts with the server until cancelled: after changes, and every `BEAT_S`."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                await self.exchange()
                if task.cancelling():  # the client may swallow it
                    return
                try:
                    async with asyncio.timeout(BEAT_S):
                        await self._wake.wait()
                except TimeoutError:
                    self._changed |= self._published
        finally:
            self._offset_s = None
            self._others.clear()
            _finish(self._next)
            await self._server.aclose()

    async def exchange(self) -> None:
        """Publish what has changed and read what others use, if the server responds."""
        waiting, self._next = self._next, None
        self._wake.clear()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._offset_s is None:
                    self._set_clock(await self._server.time())
                    self._changed |= self._published
                await self._exchange_fields()
        except Exception as error:  # whatever it is, requests go on with the limits of this gateway
            self._lose(error)
            await self._server.connection_pool.disconnect()
        else:
            self._find()
        finally:
            _finish(waiting)

    async def _exchange_fields(self) -> None:
        """One transaction: write this process's fields, read the rows that they are in."""
        assert self._offset_s is not None
        names, self._changed = self._changed, set()
        until_s = time.monotonic() + self._offset_s + LEASE_S
        transaction = self._server.pipeline(transaction=True)
        transaction.time()
        for row, field in self._expired:
            transaction.hdel(row, field)
        for name in names:
            usage = self._own.of_key(name)
            if usage == Usage():
                transaction.hdel(PREFIX + name, self._process)
                continue
            field = json.dumps({"until_s": until_s, **asdict(usage)})
            transaction.hset(PREFIX + name, self._process, field)
            transaction.pexpire(PREFIX + name, int(1000 * (LEASE_S + _FORGET_S)))
        for name in names:
            transaction.hgetall(PREFIX + name)
        server_time, *results = await transaction.execute()
        self._set_clock(server_time)
        self._expired.clear()
        rows = results[len(results) - len(names) :]
        for name, row in zip(names, rows, strict=True):
            self._others[name] = time.monotonic(), self._used_elsewhere(name, row)
            if self._own.of_key(name) == Usage() and name not in self._changed:
                self._published.discard(name)

    def _used_elsewhere(self, name: str, row: Mapping[str, str]) -> Usage:
        """The sum over other processes whose leases have not ended."""
        assert self._offset_s is not None
        now_s, others = time.monotonic() + self._offset_s, Usage()
        for process, text in row.items():
            until_s, usage = _field_of(text)
            if process != self._process and now_s < until_s:
                others.add(usage)
            elif now_s > until_s + _FORGET_S:
                self._expired.add((PREFIX + name, process))
        return others

    def _add_own(self, name: str, others: Usage) -> Usage:
        """Others, which include its gateway's other processes, and this process as it is now."""
        everywhere = Usage(*astuple(self._own.of_key(name)))
        everywhere.add(others)
        here = self._inner.of_key(name)
        return Usage(*map(max, zip(astuple(everywhere), astuple(here), strict=True)))

    def _publish(self, name: str) -> None:
        self._changed.add(name)
        if self._offset_s is not None:
            self._wake.set()

    def _set_clock(self, server_time: tuple[int, int]) -> None:
        seconds, microseconds = server_time
        self._offset_s = seconds + microseconds / 1e6 - time.monotonic()

    def _find(self) -> None:
        if self._is_lost is not False:
            log.info("limits by key hold for all gateways", extra={"store": self._name})
        self._is_lost = False
        self._metrics.limits_store_up.labels(self._name).set(True)

    def _lose(self, error: Exception) -> None:
        self._offset_s = None
        self._others.clear()
        self._metrics.limits_store_up.labels(self._name).set(False)
        if self._is_lost is not True:
            log.error(
                "limits by key hold for each gateway alone: their store does not respond",
                extra={"store": self._name, "cause": type(error).__name__},
            )
        self._is_lost = True


def _field_of(text: str) -> tuple[float, Usage]:
    """The end of a field's lease, and what its process uses.

    Of a gateway of another version: what this one does not count is left out, and what it counts
    beyond that is 0. A field that cannot be read counts nothing, and is left alone.
    """
    try:
        found = json.loads(text)
        usage = Usage(**{one.name: int(found.get(one.name, 0)) for one in fields(Usage)})
        return float(found["until_s"]), usage
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return math.inf, Usage()


def _finish(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _address(url: str) -> str:
    """Host and port, or the path of a socket: without the password."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
