"""Several Tritons as one: each call goes to one of those that have its model (D105).

A server is avoided for a version of a model from a failure until that is up again there, and for
all models while it does not respond or shuts down. A call that was refused goes to another server
at once; one that was lost is sent again (`retry_policy`). No state is shared with other gateways.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import TypeAlias, TypeVar

from inference.errors import Unavailable
from inference.tasks.shared.model_calls import Call
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.triton_client.endpoint import (
    CHECK_S,
    Address,
    Endpoint,
    Lookup,
    Share,
    StatsClient,
    choose,
    follow,
    look_up,
)
from serving.gateway.triton_client.retry_policy import RetryPolicy
from serving.gateway.triton_client.triton_inference import TritonInference

T = TypeVar("T")
Work: TypeAlias = Callable[[Share, float], Awaitable[T]]
"""Runs a call on the server of a share, within a number of seconds."""
POLL_S = 0.1
"""Of a version that is expected to be up again."""
_PAUSE_S = 0.05
"""Between two checks of a server that loses many calls at once."""


class TritonPool:
    """The servers of a gateway. Used on one event loop; `start` begins to watch them.

    Args:
        sources: Where they are.
        metrics: Their state is published there.
        moves: Whether streams leave a server that shuts down, if another one has their model.
        connect: Makes the connection to a gRPC address.
        lookup: Finds the addresses of a name.

    Attributes:
        endpoints: The servers, those that leave included.
    """

    def __init__(
        self,
        sources: Sequence[Address],
        metrics: Metrics,
        *,
        moves: bool = True,
        connect: Callable[[str], TritonInference] = TritonInference,
        lookup: Lookup = look_up,
    ) -> None:
        self.endpoints: list[Endpoint] = []
        self._metrics = metrics
        self._moves = moves
        self._connect = connect
        self._numbers = itertools.count(1)
        self._polls: dict[tuple[str, int], asyncio.Task[int]] = {}
        """By version; all calls that wait for it share one."""
        self._waiting: Counter[asyncio.Task[int]] = Counter()
        self._tasks = BackgroundTasks(metrics.failed_in_background)
        self._sources = sources
        self._lookup = lookup
        for one in sources:
            if not one.is_name:
                self._add(one, is_new=False)

    def start(self) -> None:
        """Check the servers and look up names, until `close`."""
        for endpoint in self.endpoints:
            self._start_watching(endpoint)
        if any(one.is_name for one in self._sources):
            self._tasks.start(
                "looking up of addresses", lambda: follow(self._sources, self._update, self._lookup)
            )

    def _start_watching(self, endpoint: Endpoint) -> None:
        self._tasks.start("watching of a Triton", lambda: self._watch(endpoint))

    async def send(self, call: Call, policy: RetryPolicy, work: Work[T]) -> T:
        """The result of a call on one server, which is none of those that the policy has tried.

        Raises:
            Unavailable: there is none, or it failed; the version is avoided there from now on.
        """
        policy.has_begun = policy.has_advanced = False
        endpoint = self._choose(call, policy.tried)
        policy.tried.append(endpoint)
        try:
            with endpoint.serving(call) as share:
                result = await work(share, policy.left_s)
                share.take(share.tokens)
                return result
        except Unavailable as failure:
            policy.has_begun = share.has_begun
            policy.has_advanced = share.has_begun and share.keeps_tokens
            if not failure.is_moved:
                await endpoint.note(call, failure)
            raise

    def has_others(self, call: Call, tried: Sequence[Endpoint]) -> bool:
        """Whether a server that was not tried takes calls of this version."""
        key = call.model, call.version
        return any(one.takes(key) for one in self.endpoints if one not in tried)

    def move(self, endpoint: Endpoint, call: Call) -> None:
        """End a stream on a server that leaves, if another one can go on.

        Raises:
            Unavailable: it goes on elsewhere.
        """
        if self._moves and endpoint.is_leaving and self.has_others(call, (endpoint,)):
            moved = Unavailable(f"{endpoint.name} shuts down: try again", retry_after_s=1)
            moved.is_moved = True
            raise moved

    def is_awaited(self, call: Call) -> bool:
        """Whether calls wait for this version, as no server has it."""
        return (call.model, call.version) in self._polls

    async def await_version(self, call: Call) -> int:
        """The version of a call once it is up again, or the one in its place."""
        key = call.model, call.version
        if (poll := self._polls.get(key)) is None:
            poll = self._polls[key] = asyncio.create_task(self._poll(*key))
        self._waiting[poll] += 1
        try:
            return await asyncio.shield(poll)
        finally:
            self._waiting[poll] -= 1
            if not self._waiting[poll]:
                del self._waiting[poll], self._polls[key]
                poll.cancel()

    async def _poll(self, model: str, version: int) -> int:
        while not await self.is_ready(model, version):
            served = await self.served_version(model)
            if served not in (None, version):
                return served
            await asyncio.sleep(POLL_S)
        return version

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether that version is loaded on any server; the first that has it decides."""
        polls = [asyncio.ensure_future(one.is_ready(model, version)) for one in self._reachable()]
        try:
            for answer in asyncio.as_completed(polls):
                if await answer:
                    return True
            return False
        finally:
            for each in polls:
                each.cancel()

    async def served_version(self, model: str) -> int | None:
        """The version that most servers have loaded; of several, that which most of them serve.

        So a new version is used when as many servers have it as the one before, and an old one as
        long as more have it.
        """
        with ExitStack() as polls:
            servers = [polls.enter_context(one.poll()) for one in self._reachable()]
            return await self._served_version(servers, model)

    async def _served_version(self, servers: Sequence[TritonInference], model: str) -> int | None:
        served = await asyncio.gather(*(server.served_version(model) for server in servers))
        versions = sorted({version for version in served if version is not None})
        if len(versions) < 2:
            return versions[0] if versions else None
        counts: dict[int, int] = {}
        for version in versions:
            ready = await asyncio.gather(*(server.is_ready(model, version) for server in servers))
            counts[version] = sum(ready)
        return max(versions, key=lambda one: (counts[one], served.count(one), one))

    def replicas(self, model: str, version: int) -> int:
        """Servers that take calls of that version, at least 1."""
        return max(1, sum(one.takes((model, version)) for one in self.endpoints))

    async def close(self) -> None:
        """Stop waiting for models, and close all connections."""
        for poll in self._polls.values():
            poll.cancel()
        await self._tasks.close()
        await asyncio.gather(*(one.close() for one in self.endpoints))

    def _choose(self, call: Call, tried: Sequence[Endpoint]) -> Endpoint:
        """A server for a call, none of those tried. Where all are known to be down, any of them.

        Raises:
            Unavailable: there is none.
        """
        key = call.model, call.version
        servers = [one for one in self.endpoints if one not in tried]
        found = (
            [one for one in servers if one.takes(key)]
            or [one for one in servers if one.is_up and not one.lacks(key)]
            or [one for one in servers if not one.lacks(key)]
            or servers
        )
        if not found:
            names = ", ".join(one.grpc for one in self._sources)
            raise Unavailable(f"no Triton is found at {names}: try again", retry_after_s=1)
        chosen = found[0] if len(found) == 1 else choose(found, call)
        chosen.last_choice = next(self._numbers)
        return chosen

    def _reachable(self) -> list[Endpoint]:
        """Servers whose state counts: those that are up, or all that have not left."""
        listed = [one for one in self.endpoints if one.is_listed]
        return [one for one in listed if one.is_up] or listed

    def _update(self, addresses: Iterable[Address]) -> None:
        """Have one endpoint for each address; others leave."""
        wanted = dict.fromkeys(addresses)
        known = {one.address: one for one in self.endpoints}
        for address in wanted:
            if (endpoint := known.get(address)) is None:
                endpoint = self._add(address, is_new=bool(known))
                self._start_watching(endpoint)
            elif not endpoint.is_listed:
                endpoint.list_again()
        for address, endpoint in known.items():
            if address not in wanted:
                endpoint.is_listed = False
                endpoint.wake.set()

    def _add(self, address: Address, *, is_new: bool) -> Endpoint:
        stats = StatsClient(address.metrics)
        endpoint = Endpoint(address, self._connect(address.grpc), stats, is_new=is_new)
        self.endpoints.append(endpoint)
        return endpoint

    async def _watch(self, endpoint: Endpoint) -> None:
        """Check a server until it has left, and close its connections then."""
        while endpoint in self.endpoints:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await endpoint.wake.wait()
            endpoint.wake.clear()
            before = endpoint.ejections
            await endpoint.check()
            self._metrics.endpoint_ejections.labels(endpoint.name).inc(endpoint.ejections - before)
            self._metrics.observe_endpoint(
                endpoint.name, endpoint.in_flight, endpoint.tokens, is_up=endpoint.is_up
            )
            if not endpoint.is_listed and not endpoint.in_use:
                self.endpoints.remove(endpoint)
                self._metrics.forget_endpoint(endpoint.name)
                break
            if endpoint.is_lost and any(one.is_up for one in self.endpoints):
                endpoint.server.end_calls()
            await asyncio.sleep(_PAUSE_S)
        await endpoint.close()
