"""Where Tritons are, whether calls may go there, and the one that a call goes to (D105)."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import httpx

from inference.errors import Unavailable
from inference.tasks.shared.model_calls import Call, GenerateCall, InferCall
from serving.gateway.triton_client.triton_inference import GONE, Liveness, TritonInference
from serving.liveness.stall_detector import EngineStats, read_engine_stats
from serving.ports import host_port, parse_address

RESOLVE_S = 1.0
"""Between two lookups of a name."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """One Triton's HOST:PORT for gRPC, and for metrics if that is known.

    As an entry of `--triton`, with its counterpart of `--triton-metrics`, it may be a name of
    several Tritons.
    """

    grpc: str
    metrics: str | None = None

    @property
    def is_name(self) -> bool:
        """Whether it has to be looked up; gRPC resolves localhost and its own URIs itself."""
        host, _ = split(self.grpc)
        is_uri = "/" in self.grpc or self.grpc.startswith("unix:")
        return not (is_uri or host == "localhost" or parse_address(host) is not None)

    def at(self, host: str) -> Address:
        """The Triton at one address of the name; metrics under the same name are there too."""
        grpc = host_port(host, split(self.grpc)[1])
        if self.metrics is None or split(self.metrics)[0] != split(self.grpc)[0]:
            return Address(grpc, self.metrics)
        return Address(grpc, host_port(host, split(self.metrics)[1]))


def pair_sources(grpc: Sequence[str], metrics: Sequence[str]) -> list[Address]:
    """The entries of both flags; there are as many of the second, or none."""
    return [Address(*pair) for pair in zip(grpc, metrics or (None,) * len(grpc), strict=True)]


Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name. Raises OSError."""


async def look_up(name: str) -> Sequence[str]:
    """The IPv4 addresses of a name, or those of IPv6 if it has no others: one for each server.

    Raises:
        OSError: the name is unknown, or no resolver responds.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    by_family = {
        family: sorted({str(place[0]) for kind, *_, place in found if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return by_family[socket.AF_INET] or by_family[socket.AF_INET6]


async def follow(
    sources: Sequence[Address],
    update: Callable[[Sequence[Address]], object],
    lookup: Lookup = look_up,
) -> None:
    """Look up the names among the sources until cancelled; what cannot be found stays as it was.

    Args:
        update: Called with the addresses of all sources, whenever they have changed.
    """
    found = {source: [source] for source in sources}
    names = [source for source in sources if source.is_name]
    found |= {source: [] for source in names}
    problems: dict[Address, str] = {}
    while True:
        before = dict(found)
        for source in names:
            try:
                hosts = await lookup(split(source.grpc)[0])
            except OSError as error:
                if problems.get(source) != str(error):
                    log.warning("cannot look up %s: %s", source.grpc, error)
                problems[source] = str(error)
                continue
            problems.pop(source, None)
            found[source] = [source.at(host) for host in hosts]
        if found != before:
            update([one for addresses in found.values() for one in addresses])
        await asyncio.sleep(RESOLVE_S)


def split(text: str) -> tuple[str, str]:
    """Host and port of `HOST:PORT` or `[HOST]:PORT`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") if host.startswith("[") else host, port


CHECK_S = 1.0
"""Between two checks of a server; one that has lost a call is checked at once."""
HOLD_S = 0.1
"""For which a version of a model is avoided after a failure, at least."""
ABSENT_S = 60.0
"""For which it is avoided at most; a call then shows whether it still is not there."""
LOST_S = 10.0
"""After so long without a response, calls that run on a server are lost."""
SLOW_START_S = 10.0
"""In which a server that returns, or is new, takes its share of calls little by little."""
LEAST_WEIGHT = 0.1
"""Of a server that has just returned; others have 1."""
_STATS_TIMEOUT_S = 2.0
NEW_TOKENS = 128
"""Assumed of a sequence whose request does not bound them."""


Version = tuple[str, int]
"""A model (of Triton) and its version."""


@dataclass
class _Absence:
    """Why a version of a model is avoided.

    Attributes:
        since_s: The last failure.
        is_noticed: Whether Triton reports it as not ready, or has.
        dead: The incarnation of a process that has ended, while Triton does not report that.
    """

    since_s: float
    is_noticed: bool
    dead: str | None = None


class StatsClient:
    """Reads the engines' statistics from Triton's metrics, for `/ready`.

    Args:
        address: HOST:PORT; None if not configured: there are no statistics then.
    """

    def __init__(self, address: str | None) -> None:
        self._url = f"http://{address}/metrics" if address else None
        self._http = httpx.AsyncClient(timeout=_STATS_TIMEOUT_S, trust_env=False, verify=False)

    async def read(self) -> dict[str, EngineStats]:
        """Statistics by model; empty if Triton does not respond."""
        if self._url is None:
            return {}
        try:
            response = await self._http.get(self._url)
        except httpx.HTTPError:
            return {}
        return read_engine_stats(response.text)

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()


@dataclass(eq=False)
class Share:
    """One call's share of the work that a server has to do.

    Attributes:
        tokens: Those left, an estimate.
        has_begun: Whether any have been generated.
        keeps_tokens: Whether its call goes on behind them if it is lost.
    """

    endpoint: Endpoint
    model: str
    tokens: int
    has_begun: bool = False
    keeps_tokens: bool = False

    def take(self, tokens: int) -> None:
        """Note tokens that have been generated."""
        self.has_begun = True
        self.endpoint.last_result_s[self.model] = time.monotonic()
        self._drop(min(tokens, self.tokens))

    def close(self) -> None:
        """Drop what is left: the call has ended."""
        self._drop(self.tokens)

    def _drop(self, tokens: int) -> None:
        self.tokens -= tokens
        self.endpoint.tokens -= tokens


class Endpoint:
    """A server, and what its calls have shown. Used on one event loop.

    Args:
        address: Where it is.
        server: The connection.
        stats: Reads its engines' statistics.
        is_new: Whether it joins others, which have work already.
        clock: Seconds.

    Attributes:
        in_flight: Calls.
        in_use: Whether a call or a poll runs, for which the connection must stay open.
        tokens: Outstanding ones, an estimate: of prompts, and of what is generated.
        is_listed: Whether its address is still among those that the names have.
        unresponsive: Versions of models that have no heartbeat, or answer no canary.
        last_result_s: Model → monotonic time of its last result, or of its last tokens.
        last_choice: Number of the call that was last sent to it.
        wake: Set when it has lost a call: it is to be checked at once.
    """

    def __init__(
        self,
        address: Address,
        server: TritonInference,
        stats: StatsClient,
        *,
        is_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.server = server
        self.stats = stats
        self.in_flight = 0
        self._polls = 0
        self.tokens = 0
        self.is_listed = True
        self.unresponsive: frozenset[Version] = frozenset()
        self.last_result_s: dict[str, float] = {}
        self.last_choice = 0
        self.wake = asyncio.Event()
        self.liveness = Liveness.LIVE
        self.ejections = 0
        self._clock = clock
        self._returned_s = clock() if is_new else -math.inf
        self._unreachable_s: float | None = None
        self._absent: dict[Version, _Absence] = {}

    @property
    def name(self) -> str:
        """Its address, for logs and metrics."""
        return self.address.grpc

    @property
    def is_up(self) -> bool:
        """Whether it takes new calls."""
        return self.is_listed and self.liveness is Liveness.LIVE

    @property
    def is_leaving(self) -> bool:
        """Whether it finishes what it has, and takes no new calls."""
        return not self.is_listed or self.liveness is Liveness.STOPPING

    def takes(self, version: Version) -> bool:
        """Whether calls of a version may go there, as far as is known."""
        return self.is_up and version not in self._absent and version not in self.unresponsive

    def lacks(self, version: Version) -> bool:
        """Whether calls of a version have failed there lately."""
        return version in self._absent

    def load(self, work: int) -> float:
        """Outstanding tokens if it took so many more; of one that has just returned, more."""
        passed = (self._clock() - self._returned_s) / SLOW_START_S
        return (self.tokens + work) / min(1.0, max(LEAST_WEIGHT, passed))

    @contextmanager
    def serving(self, call: Call) -> Iterator[Share]:
        """Count a call as in flight."""
        share = Share(self, call.model, work_of(call))
        self.in_flight += 1
        self.tokens += share.tokens
        try:
            yield share
        finally:
            self.in_flight -= 1
            share.close()

    @property
    def in_use(self) -> bool:
        """See the class."""
        return bool(self.in_flight or self._polls)

    @contextmanager
    def poll(self) -> Iterator[TritonInference]:
        """Keep the connection open: `grpc.aio` cancels what waits when its channel is closed."""
        self._polls += 1
        try:
            yield self.server
        finally:
            self._polls -= 1

    async def perform(self, call: Call, timeout_s: float) -> None:
        """Run a canary.

        Raises:
            ServingError: it failed.
        """
        with self.poll() as server:
            if isinstance(call, InferCall):
                await server.infer(call, timeout_s)
            else:
                await server.generate(call, timeout_s)
        self.last_result_s[call.model] = time.monotonic()

    async def note(self, call: Call, failure: Unavailable) -> None:
        """Avoid the version of a failed call until it is up again."""
        key = call.model, call.version
        now_s = self._clock()
        if (absence := self._absent.get(key)) is not None:
            absence.since_s = now_s
            return
        absence = self._absent[key] = _Absence(now_s, not failure.is_unnoticed)
        self.wake.set()
        if failure.is_unnoticed:
            with self.poll() as server:
                absence.dead = await server.incarnation(call.model)
            absence.is_noticed = absence.dead == GONE

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether a version is loaded, and its process is another one than that which has ended.

        Triton reports a dead process as ready until the supervisor unloads it, which may take
        seconds where it heals other models first.
        """
        with self.poll() as server:
            return await self._is_ready(server, model, version)

    async def _is_ready(self, server: TritonInference, model: str, version: int) -> bool:
        absence = self._absent.get((model, version))
        if absence is None:
            return await server.is_ready(model, version)
        if self._clock() < absence.since_s + HOLD_S:
            return False
        if not await server.is_ready(model, version):
            absence.is_noticed = True
            return False
        # Read in any case: calls that are sent from now on are not taken for older ones.
        now = await server.incarnation(model)
        if not absence.is_noticed and now in (None, GONE, absence.dead):
            return False
        if self._absent.get((model, version)) is absence:
            del self._absent[model, version]
        return True

    async def check(self) -> None:
        """Read whether the server responds, then whether what it lacked has returned."""
        began_s = self._clock()
        self._note_liveness(await self.server.liveness(), began_s)
        for key, absence in list(self._absent.items()):
            if self._clock() > absence.since_s + ABSENT_S:
                self._absent.pop(key, None)
            elif self.liveness is Liveness.LIVE:
                await self.is_ready(*key)

    def list_again(self) -> None:
        """Take calls again: the address has returned."""
        self.is_listed = True
        self._returned_s = self._clock()

    async def close(self) -> None:
        """Close the connections."""
        await self.stats.close()
        await self.server.close()

    @property
    def is_lost(self) -> bool:
        """Whether it has not responded for so long that its calls are lost."""
        since_s = self._unreachable_s
        return since_s is not None and self._clock() > since_s + LOST_S

    def _note_liveness(self, found: Liveness, began_s: float) -> None:
        before, self.liveness = self.liveness, found
        if found is Liveness.UNREACHABLE:
            self._unreachable_s = began_s if self._unreachable_s is None else self._unreachable_s
        else:
            self._unreachable_s = None
        if found is before:
            return
        if found is Liveness.LIVE:
            self._returned_s = self._clock()
            log.info("Triton is up again", extra={"endpoint": self.name})
            return
        self.ejections += 1
        what = "stops" if found is Liveness.STOPPING else "does not respond"
        log.warning("Triton %s: new calls avoid it", what, extra={"endpoint": self.name})


def work_of(call: Call) -> int:
    """Tokens that a call costs, an estimate: those of its inputs, and those it may generate."""
    if not isinstance(call, GenerateCall):
        return call.tokens
    options = call.options
    rows = max(options.num_beams or 1, options.best_of or 1, options.num_return_sequences or 1)
    new = max(1, (options.max_new_tokens or NEW_TOKENS) - len(options.generated_ids or ()))
    return call.tokens + rows * new


PREFIX_TOKENS = 48
"""Of a prompt: what begins equally goes to one server. An engine keeps no shorter prefixes
(`inference.engine.scheduler.Capacity.prefix_min_tokens`)."""
MORE_LOAD = 1.25
MORE_TOKENS = 512
"""A server takes a prompt for its prefix while it has at most so much more to do than another."""


def choose(endpoints: Sequence[Endpoint], call: Call) -> Endpoint:
    """The server for a call.

    Equal prefixes choose the same one by rendezvous hashing (Thaler and Ravishankar 1998), which
    needs no state: several gateways choose alike, and a server that comes or goes moves its own
    prefixes only. One that is overloaded is passed over for the next (bounded loads: Mirrokni et
    al., arXiv 1608.01350).

    Args:
        endpoints: At least one.
    """
    work = work_of(call)
    least = min(endpoints, key=lambda one: (one.load(work), one.last_choice))
    prefix = _prefix(call)
    if prefix is None:
        return least
    limit = least.load(work) * MORE_LOAD + MORE_TOKENS
    fitting = [one for one in endpoints if one.load(work) <= limit]
    return max(fitting, key=lambda one: _rank(prefix, one.name))


def _prefix(call: Call) -> bytes | None:
    """What the engine could share with other prompts; None: too little."""
    if not isinstance(call, GenerateCall):
        return None
    ids = call.inputs.get("prompt_ids")
    if ids is None or ids.size < PREFIX_TOKENS:
        return None
    return call.model.encode() + bytes(ids.reshape(-1)[:PREFIX_TOKENS].tobytes())


def _rank(prefix: bytes, name: str) -> bytes:
    return blake2b(prefix, digest_size=8, key=name.encode()[:64]).digest()
