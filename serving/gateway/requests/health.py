"""Readiness: every model is loaded and responsive, and the gateway is not draining.

Of several Tritons one is enough for each model; calls avoid the others until they are well. A model
with a moving heartbeat (`serving.liveness.heartbeat`) is responsive, however busy it is. A canary
is sent only to an idle model that has answered no request lately.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from weakref import WeakKeyDictionary

from inference.errors import Overloaded, ServingError
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call
from serving.draining import SHUTTING_DOWN
from serving.gateway.requests.service import Service
from serving.gateway.triton_client.endpoint import Endpoint, Version
from serving.liveness.stall_detector import EngineStats, StallDetector

CANARY_TIMEOUT_S = 5.0
FRESH_S = 10.0
"""A model that answered within this time needs no canary; a heartbeat may pause for so long."""

KEEP_S = 1.0

log = logging.getLogger(__name__)


class Readiness:
    """The check behind `/ready` and gRPC health; all callers of a second share one.

    Args:
        endpoints: Reads the servers that have the models.
        clock: Seconds.
        keep_s: Time for which the result of a check is returned to further callers.
        explain: Why there may be no models: what in the repository was skipped.
    """

    def __init__(
        self,
        service: Service,
        endpoints: Callable[[], Sequence[Endpoint]],
        clock: Callable[[], float] = time.monotonic,
        keep_s: float = KEEP_S,
        explain: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._service = service
        self._endpoints = endpoints
        self._explain = explain
        self._clock = clock
        self._stalls = WeakKeyDictionary[Endpoint, StallDetector]()
        self._keep_s = keep_s
        self._checking: asyncio.Task[str | None] | None = None
        """The last check."""
        self._checked_s = 0.0
        """When it had ended."""
        self._was_ready: bool | None = None

    async def problem(self) -> str | None:
        """Why the gateway is not ready; None when it is."""
        if self._service.is_draining:
            return SHUTTING_DOWN
        if not self._service.catalog.models:
            return f"no model is served: {self._explain() or 'run `triptych export`'}"
        is_old = self._clock() - self._checked_s >= self._keep_s
        if self._checking is None or (self._checking.done() and is_old):
            self._checking = asyncio.create_task(self._check(), context=contextvars.Context())
        return await asyncio.shield(self._checking)  # of all callers: none of them ends it

    async def _check(self) -> str | None:
        calls = [call for model in self._service.catalog.models for call in canaries(model)]
        endpoints = list(self._endpoints())
        endpoints = [one for one in endpoints if one.is_up] or endpoints
        if not endpoints:
            return "no Triton is found"
        try:
            with ExitStack() as polls:
                for one in endpoints:
                    polls.enter_context(one.poll())
                found = await asyncio.gather(*(self._problems(one, calls) for one in endpoints))
        finally:
            self._checked_s = self._clock()
        problem = self._common(endpoints, found)
        if self._was_ready is not (problem is None):
            self._was_ready = problem is None
            if problem is None:
                log.info("ready")
            else:
                log.warning("not ready: %s", problem)
        return problem

    @staticmethod
    def _common(endpoints: Sequence[Endpoint], found: Sequence[Sequence[str | None]]) -> str | None:
        """The first problem that a model has on all servers."""
        for problems in zip(*found, strict=True):
            if all(problems):
                place = f"{endpoints[0].name}: " if len(endpoints) > 1 else ""
                return f"{place}{problems[0]}"
        return None

    async def _problems(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[str | None]:
        """The problem of each canary's model on one server; calls avoid what does not respond."""
        engines = await endpoint.stats.read()
        stalls = self._stalls.setdefault(endpoint, StallDetector(self._clock))
        stalls.update(engines)
        unresponsive = set[Version]()

        async def problem(canary: Call) -> str | None:
            key = canary.model, canary.version
            if not await endpoint.is_ready(*key):
                return f"{canary.model} version {canary.version} is not loaded"
            engine = engines.get(canary.model, EngineStats(0, {})).of_version(canary.version)
            found = await self._unresponsive(endpoint, canary, engine, stalls)
            if found is not None:
                unresponsive.add(key)
            return found

        problems = await asyncio.gather(*map(problem, calls))
        endpoint.unresponsive = frozenset(unresponsive)
        return problems

    async def _unresponsive(
        self, endpoint: Endpoint, canary: Call, engine: EngineStats, stalls: StallDetector
    ) -> str | None:
        """How a loaded model does not respond."""
        by_process = stalls.stalled_s.get(canary.model, {})
        stalled_s = max((by_process.get(pid, 0.0) for pid in engine.processes), default=0.0)
        if stalled_s > FRESH_S:
            return f"{canary.model} has had no heartbeat for {stalled_s:.0f} s"
        last_s = endpoint.last_result_s.get(canary.model, float("-inf"))
        if engine.is_busy or self._clock() - last_s < FRESH_S:
            return None  # a busy model is not a dead one
        try:
            await endpoint.perform(canary, CANARY_TIMEOUT_S)
        except Overloaded:
            return None
        except ServingError as error:
            return f"{canary.model} did not answer a canary ({error.wire})"
        return None


def canaries(model: LoadedModel) -> list[Call]:
    """One canary for each Triton model of a bundle, from the tasks that use it."""
    calls = (call for name in model.sections for call in TASKS[name].canary(model))
    return list({call.model: call for call in calls}.values())
