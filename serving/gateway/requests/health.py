"""Readiness: every model is loaded and responsive, and the gateway is not draining.

A model with a moving heartbeat (`serving.liveness.heartbeat`) is responsive, however busy it is. A
canary is sent only to an idle model that has answered no request lately.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable

from inference.errors import Overloaded, ServingError
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call
from serving.gateway.requests.service import Service
from serving.liveness.engine_stats import EngineStats
from serving.liveness.stall_detector import StallDetector

CANARY_TIMEOUT_S = 5.0
FRESH_S = 10.0
"""A model that answered within this time needs no canary; a heartbeat may pause for so long."""

KEEP_S = 1.0


async def _no_stats() -> dict[str, EngineStats]:
    return {}


class Readiness:
    """The check behind `/ready` and gRPC health; all callers of a second share one.

    Args:
        read_stats: Reads the engines' statistics, by model (of Triton).
        clock: Seconds.
        keep_s: Time for which the result of a check is returned to further callers.
        explain: Why there may be no models: what in the repository was skipped.
    """

    def __init__(
        self,
        service: Service,
        read_stats: Callable[[], Awaitable[dict[str, EngineStats]]] = _no_stats,
        clock: Callable[[], float] = time.monotonic,
        keep_s: float = KEEP_S,
        explain: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._service = service
        self._explain = explain
        self._read_stats = read_stats
        self._clock = clock
        self._stalls = StallDetector(clock)
        self._keep_s = keep_s
        self._checking: asyncio.Task[str | None] | None = None
        """The last check."""
        self._checked_s = 0.0
        """When it had ended."""

    async def problem(self) -> str | None:
        """Why the gateway is not ready; None when it is."""
        if self._service.execution.is_draining:
            return "the gateway is shutting down"
        if not self._service.catalog.models:
            return f"no model is served: {self._explain() or 'run `triptych export`'}"
        is_old = self._clock() - self._checked_s >= self._keep_s
        if self._checking is None or (self._checking.done() and is_old):
            self._checking = asyncio.create_task(self._check(), context=contextvars.Context())
        return await asyncio.shield(self._checking)  # of all callers: none of them ends it

    async def _check(self) -> str | None:
        calls = [call for model in self._service.catalog.models for call in canaries(model)]
        try:
            engines = await self._read_stats()
            self._stalls.update(engines)
            problems = await asyncio.gather(*(self._problem(call, engines) for call in calls))
            return next((problem for problem in problems if problem), None)
        finally:
            self._checked_s = self._clock()

    async def _problem(self, canary: Call, engines: dict[str, EngineStats]) -> str | None:
        if not await self._service.execution.calls.inference.is_ready(canary.model, canary.version):
            return f"{canary.model} version {canary.version} is not loaded"
        engine = engines.get(canary.model, EngineStats(0, {})).of_version(canary.version)
        by_process = self._stalls.stalled_s.get(canary.model, {})
        stalled_s = max((by_process.get(pid, 0.0) for pid in engine.processes), default=0.0)
        if stalled_s > FRESH_S:
            return f"{canary.model} has had no heartbeat for {stalled_s:.0f} s"
        last_s = self._service.execution.calls.last_result_s.get(canary.model, float("-inf"))
        if engine.is_busy or self._clock() - last_s < FRESH_S:
            return None  # a busy model is not a dead one
        try:
            await self._service.execution.calls.perform(canary, CANARY_TIMEOUT_S)
        except Overloaded:
            return None
        except ServingError as error:
            return f"{canary.model} did not answer a canary ({error.wire})"
        return None


def canaries(model: LoadedModel) -> list[Call]:
    """One canary for each Triton model of a bundle, from the tasks that use it."""
    calls = (call for name in model.sections for call in TASKS[name].canary(model))
    return list({call.model: call for call in calls}.values())
