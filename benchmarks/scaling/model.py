"""A queueing model of gateways and Tritons, simulated by events (SimPy).

A request passes a gateway (one event loop: one request at a time), waits for a Triton, is computed
there, and passes the gateway again. A Triton works in iterations, as the engine does: it advances
all of its rows by one step, whose time is `base_s + row_s * rows`. An encoder's request has one
step, a generator's as many as it has tokens. Times are constants that were measured; arrivals are
random. On one machine the client, the gateway, a Triton and other programs take turns on its cores,
a slice each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import simpy

Process: TypeAlias = Generator[simpy.Event, Any, Any]
SLICE_S = 0.003
"""That a program of the machine keeps a core while others wait: Linux's base slice on two cores."""


@dataclass(frozen=True)
class Costs:
    """Service times of one kind of request, in seconds.

    Attributes:
        gateway_s: Of a gateway's event loop, before and after inference together.
        wake_s: The same, more where the loop had nothing to do before.
        base_s: Of a step, whatever its rows.
        row_s: Of each row of a step.
        steps: Of a request: tokens generated, or 1.
        rows: Most rows of a step.
        client_s: Of the client and whatever else passes a request on, one request at a time.
        cores: That a step occupies.
    """

    gateway_s: float
    base_s: float
    row_s: float
    steps: int = 1
    rows: int = 64
    client_s: float = 0.0
    cores: int = 1
    wake_s: float = 0.0

    @property
    def capacity(self) -> float:
        """Requests a second of one Triton whose rows are all in use."""
        return self.rows / (self.steps * (self.base_s + self.row_s * self.rows))


@dataclass(eq=False)
class Request:
    """One request.

    Attributes:
        steps: Steps that are left.
        moves: How often its Triton failed.
    """

    arrived_s: float
    steps: int
    done: simpy.Event
    moves: int = 0


class Triton:
    """One engine. It may fail, and come back.

    Args:
        cores: Of its machine, where others compete for them; None: its own.
    """

    def __init__(self, env: simpy.Environment, costs: Costs, cores: simpy.Container | None) -> None:
        self.is_up = True
        self.rows: list[Request] = []
        self.waiting: list[Request] = []
        self._env, self._costs, self._cores = env, costs, cores
        self._work = env.event()
        self._loop = env.process(self._run())

    @property
    def load(self) -> int:
        """Number of its running and waiting requests."""
        return len(self.rows) + len(self.waiting)

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)
        if not self._work.triggered:
            self._work.succeed()

    def fail(self) -> list[Request]:
        """End at once; the requests that were in it, which keep the steps that they have had."""
        self.is_up = False
        lost = [*self.rows, *self.waiting]
        self.rows, self.waiting = [], []
        self._loop.interrupt()
        return lost

    def _run(self) -> Process:
        costs = self._costs
        try:
            while True:
                if not self.load:
                    self._work = self._env.event()
                    yield self._work
                free = costs.rows - len(self.rows)
                self.rows += self.waiting[:free]
                del self.waiting[:free]
                yield from self._compute(costs.base_s + costs.row_s * len(self.rows))
                for request in self.rows:
                    request.steps -= 1
                    if not request.steps:
                        request.done.succeed()
                self.rows = [request for request in self.rows if request.steps]
        except simpy.Interrupt:
            return

    def _compute(self, left_s: float) -> Process:
        """A step, in slices where others compete for the cores."""
        if self._cores is None:
            yield self._env.timeout(left_s)
            return
        slices, rest_s = divmod(left_s, SLICE_S)
        for slice_s in (*[SLICE_S] * int(slices), rest_s):
            yield self._cores.get(self._costs.cores)
            yield self._env.timeout(slice_s)
            yield self._cores.put(self._costs.cores)


class Loop:
    """An event loop: one turn at a time, and while turns wait it keeps its core for a slice.

    Args:
        turn_s: Of a turn.
        wake_s: More of a turn for which the loop slept before.
        cores: Of its machine, where others compete for them; None: its own.
    """

    def __init__(
        self, env: simpy.Environment, turn_s: float, wake_s: float, cores: simpy.Container | None
    ) -> None:
        self._env, self._turn_s, self._wake_s, self._cores = env, turn_s, wake_s, cores
        self._turns: deque[simpy.Event] = deque()
        self._work = env.event()
        env.process(self._run())

    @property
    def waiting(self) -> int:
        """Number of turns that wait."""
        return len(self._turns)

    def turn(self) -> simpy.Event:
        """The end of a turn that is requested now."""
        self._turns.append(self._env.event())
        if not self._work.triggered:
            self._work.succeed()
        return self._turns[-1]

    def _run(self) -> Process:
        while True:
            wake_s = 0.0
            if not self._turns:
                self._work = self._env.event()
                yield self._work
                wake_s = self._wake_s
            if self._cores is not None:
                yield self._cores.get(1)
            until_s = self._env.now + SLICE_S
            while self._turns and self._env.now < until_s:
                yield self._env.timeout(self._turn_s + wake_s)
                self._turns.popleft().succeed()
                wake_s = 0.0
            if self._cores is not None:
                yield self._cores.put(1)


@dataclass
class Answers:
    """What clients saw: when each request arrived, and how long it took."""

    arrived_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    moved: int = 0


class Cluster:
    """Gateways and Tritons; each request goes to the least loaded of both.

    Args:
        cores: Of one machine that all share; None: everything has its own.
        others: Cores that other programs of that machine use.
    """

    def __init__(
        self,
        env: simpy.Environment,
        costs: Costs,
        gateways: int,
        tritons: int,
        cores: int | None = None,
        others: float = 0.0,
    ) -> None:
        self.env, self.costs = env, costs
        self.answers = Answers()
        self._cores = simpy.Container(env, cores, init=cores) if cores else None
        self.gateways = [
            Loop(env, costs.gateway_s / 2, costs.wake_s / 2, self._cores) for _ in range(gateways)
        ]
        self._client = Loop(env, costs.client_s, 0.0, self._cores) if costs.client_s else None
        self.tritons = [self._made() for _ in range(tritons)]
        self._lost: list[Request] = []
        for _ in range(math.ceil(others)):
            env.process(self._other(others / math.ceil(others)))

    @property
    def up(self) -> list[Triton]:
        """Tritons that serve."""
        return [triton for triton in self.tritons if triton.is_up]

    def arrive(self, gaps: Callable[[], float], until_s: float) -> Process:
        """Requests, one after each gap."""
        while self.env.now < until_s:
            yield self.env.timeout(gaps())
            self.env.process(self.request())

    def add(self, delay_s: float) -> Process:
        """A further Triton, after the time that it takes to start."""
        yield self.env.timeout(delay_s)
        self.tritons.append(self._made())
        for request in self._lost:
            self._place(request)
        self._lost = []

    def remove(self) -> None:
        """A Triton drains: it finishes what it has and gets no more."""
        triton = min(self.up, key=lambda each: each.load)
        self.tritons.remove(triton)

    def fail(self, count: int) -> None:
        """Tritons end at once; their requests go on elsewhere, or wait for one."""
        for triton in self.up[:count]:
            for request in triton.fail():
                request.moves += 1
                self.answers.moved += 1
                self._place(request)

    def _other(self, part: float) -> Process:
        """A program that wants this part of a core, for ever."""
        assert self._cores is not None
        while True:
            yield self._cores.get(1)
            yield self.env.timeout(SLICE_S)
            yield self._cores.put(1)
            yield self.env.timeout(SLICE_S * (1 / part - 1))

    def _made(self) -> Triton:
        return Triton(self.env, self.costs, self._cores)

    def _place(self, request: Request) -> None:
        if self.up:
            min(self.up, key=lambda each: each.load).submit(request)
        else:
            self._lost.append(request)

    def request(self) -> Process:
        """One request, from its client and back."""
        arrived_s, costs = self.env.now, self.costs
        if self._client is not None:
            yield self._client.turn()
        gateway = min(self.gateways, key=lambda each: each.waiting)
        yield gateway.turn()
        request = Request(arrived_s, costs.steps, self.env.event())
        self._place(request)
        yield request.done
        yield gateway.turn()
        self.answers.arrived_s.append(arrived_s)
        self.answers.latency_s.append(self.env.now - arrived_s)


@dataclass
class Autoscaler:
    """Adds Tritons by their load, in units of one whose rows are all in use.

    Attributes:
        start_s: From the decision to a Triton that serves.
        target: Load of each that is aimed at.
        period_s: Between decisions.
        scrape_s: Age of what it decides by.
        most: Tritons.
        growth: A number of Tritons → how many a minute may be added.
        history: Time and number of Tritons, at each decision.
    """

    cluster: Cluster
    start_s: float
    target: float = 0.25
    period_s: float = 15.0
    scrape_s: float = 15.0
    most: int = 200
    growth: Callable[[int], int] = lambda count: max(4, count)
    history: list[tuple[float, int]] = field(default_factory=list)

    def run(self) -> Process:
        """Decide for ever."""
        env, cluster = self.cluster.env, self.cluster
        wanted = len(cluster.up)
        added: list[tuple[float, int]] = []
        while True:
            load = self._load()
            yield env.timeout(self.scrape_s)
            desired = min(self.most, math.ceil(load / self.target))
            recent = sum(count for at_s, count in added if env.now - at_s < 60)
            more = min(desired - wanted, self.growth(wanted - recent) - recent)
            if more > 0:
                added.append((env.now, more))
                wanted += more
                for _ in range(more):
                    env.process(cluster.add(self.start_s))
            self.history.append((env.now, len(cluster.up)))
            yield env.timeout(max(0.0, self.period_s - self.scrape_s))

    def _load(self) -> float:
        rows = self.cluster.costs.rows
        return sum(triton.load for triton in self.cluster.up) / rows
