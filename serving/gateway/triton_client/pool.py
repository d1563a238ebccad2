"""Several Tritons as one: each call goes to one of those that have its model (D105).

A server is avoided for a version of a model from a failure until that is up again there, and for
all models while it does not respond or shuts down. A call that was refused goes to another server
at once; one that was lost is sent again by `recovery`. No state is shared with other gateways.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing, suppress
from typing import TypeVar

from inference.errors import Unavailable
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import Call, GenerateCall, InferCall, Outputs
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.triton_client.endpoint import (
    CHECK_S,
    Address,
    AddressSource,
    Endpoint,
    Lookup,
    Share,
    StatsClient,
    choose,
    follow,
    look_up,
)
from serving.gateway.triton_client.inference import Server
from serving.gateway.triton_client.triton_inference import TritonInference

T = TypeVar("T")
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
        sources: Sequence[AddressSource],
        metrics: Metrics,
        *,
        moves: bool = True,
        connect: Callable[[str], Server] = TritonInference,
        lookup: Lookup = look_up,
    ) -> None:
        self.endpoints: list[Endpoint] = []
        self._metrics = metrics
        self._moves = moves
        self._connect = connect
        self._numbers = itertools.count(1)
        self._tasks = BackgroundTasks(metrics.failed_in_background)
        self._sources = sources
        self._lookup = lookup
        for one in sources:
            if not one.is_name:
                self._add(Address(one.grpc, one.metrics), is_new=False)

    def start(self) -> None:
        """Check the servers and look up names, until `close`."""
        for endpoint in self.endpoints:
            self._start_watching(endpoint)
        if any(one.is_name for one in self._sources):
            self._tasks.start(
                "looking up of addresses",
                lambda: follow(self._sources, self._update, self._lookup),
            )

    def _start_watching(self, endpoint: Endpoint) -> None:
        self._tasks.start("watching of a Triton", lambda: self._watch(endpoint))

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        """One sequence on one server."""
        return await self._run(
            call, timeout_s, lambda server, left_s: server.generate(call, left_s)
        )

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        """One batch on one server."""
        return await self._run(call, timeout_s, lambda server, left_s: server.infer(call, left_s))

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """One sequence's tokens; `is_moved` is raised where another server is to go on.

        Once a token has been yielded, no server begins the sequence again: the caller has a
        further call go on behind it (D102).
        """
        until_s = time.monotonic() + timeout_s
        tried: list[Endpoint] = []
        has_begun = False
        while True:
            endpoint = self._choose(call, tried)
            try:
                with endpoint.serving(call) as share:
                    left_s = max(0.001, until_s - time.monotonic())
                    async with aclosing(endpoint.server.stream(call, left_s)) as items:
                        async for item in items:
                            _take(share, item)
                            has_begun = True
                            yield item
                            if not isinstance(item, Finished):
                                self._move(endpoint, call)
                return
            except Unavailable as failure:
                tried.append(endpoint)
                await self._failed(endpoint, call, failure, tried, has_begun=has_begun)

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether that version is loaded on any server; the first that has it decides."""
        asked = [asyncio.ensure_future(one.is_ready(model, version)) for one in self._asked()]
        try:
            for answer in asyncio.as_completed(asked):
                if await answer:
                    return True
            return False
        finally:
            for each in asked:
                each.cancel()

    async def served_version(self, model: str) -> int | None:
        """The version that most servers have loaded; of several, that which most of them serve.

        So a new version is used when as many servers have it as the one before, and an old one as
        long as more have it.
        """
        with ExitStack() as polls:
            servers = [polls.enter_context(one.polled()) for one in self._asked()]
            return await self._served_version(servers, model)

    async def _served_version(self, servers: Sequence[Server], model: str) -> int | None:
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
        """Close all connections."""
        await self._tasks.close()
        await asyncio.gather(*(one.close() for one in self.endpoints))

    async def _run(
        self, call: Call, timeout_s: float, work: Callable[[Server, float], Awaitable[T]]
    ) -> T:
        until_s = time.monotonic() + timeout_s
        tried: list[Endpoint] = []
        while True:
            endpoint = self._choose(call, tried)
            try:
                with endpoint.serving(call) as share:
                    left_s = max(0.001, until_s - time.monotonic())
                    result = await work(endpoint.server, left_s)
                    share.take(share.tokens)
                    return result
            except Unavailable as failure:
                tried.append(endpoint)
                await self._failed(endpoint, call, failure, tried)

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

    async def _failed(
        self,
        endpoint: Endpoint,
        call: Call,
        failure: Unavailable,
        tried: Sequence[Endpoint],
        *,
        has_begun: bool = False,
    ) -> None:
        """Raise a failure, unless another server may take the call at once.

        Args:
            has_begun: Whether something of the call's result has been returned.

        Raises:
            Unavailable: the failure.
        """
        if failure.is_moved:
            raise failure
        await endpoint.note(call, failure)
        if has_begun or failure.is_loss or not self._others(call, tried):
            raise failure

    def _others(self, call: Call, tried: Sequence[Endpoint]) -> bool:
        key = call.model, call.version
        return any(one.takes(key) for one in self.endpoints if one not in tried)

    def _move(self, endpoint: Endpoint, call: Call) -> None:
        """End a stream on a server that leaves, if another one can go on.

        Raises:
            Unavailable: it goes on elsewhere.
        """
        if self._moves and endpoint.is_leaving and self._others(call, (endpoint,)):
            moved = Unavailable(f"{endpoint.name} shuts down: try again", retry_after_s=1)
            moved.is_moved = True
            raise moved

    def _asked(self) -> list[Endpoint]:
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


def _take(share: Share, item: TokenChunk | Finished) -> None:
    share.take(share.tokens if isinstance(item, Finished) else len(item.token_ids))
