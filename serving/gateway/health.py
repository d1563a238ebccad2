"""Readiness: every model is loaded and responsive, and the gateway is not draining.

A model with a moving heartbeat (`serving.heartbeat`) is responsive, however busy it is. A canary is
sent only to an idle model that has answered no request lately.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np

from serving.bundle import Part, Role
from serving.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from serving.errors import Overloaded, TriptychError
from serving.gateway.service import Service
from serving.generation import Overrides
from serving.heartbeat import EngineStats
from serving.stall_detector import StallDetector
from serving.tasks.call import Array, Call, GenerateCall, InferCall
from serving.tasks.model import LoadedModel

CANARY_TIMEOUT_S = 5.0
FRESH_S = 10.0
"""A model that answered within this time needs no canary; a heartbeat may pause for so long."""


async def _no_stats() -> dict[str, EngineStats]:
    return {}


class Readiness:
    """The check behind `/ready` and gRPC health; concurrent calls run one after the other.

    Args:
        service: Its models are checked.
        read_stats: Reads the engines' statistics, by model (of Triton).
        clock: Seconds.
    """

    def __init__(
        self,
        service: Service,
        read_stats: Callable[[], Awaitable[dict[str, EngineStats]]] = _no_stats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._read_stats = read_stats
        self._clock = clock
        self._stalls = StallDetector(clock)
        self._lock = asyncio.Lock()

    async def problem(self) -> str | None:
        """Why the gateway is not ready; None when it is."""
        if self._service.is_draining:
            return "the gateway is shutting down"
        calls = [call for model in self._service.catalog.models for call in canaries(model)]
        async with self._lock:
            engines = await self._read_stats()
            self._stalls.update(engines)
            problems = await asyncio.gather(*(self._problem(call, engines) for call in calls))
        return next((problem for problem in problems if problem), None)

    async def _problem(self, canary: Call, engines: dict[str, EngineStats]) -> str | None:
        if not await self._service.inference.is_ready(canary.model, canary.version):
            return f"{canary.model} version {canary.version} is not loaded"
        stalled_s = max(self._stalls.stalled_s.get(canary.model, {}).values(), default=0.0)
        if stalled_s > FRESH_S:
            return f"{canary.model} has had no heartbeat for {stalled_s:.0f} s"
        last_s = self._service.last_answer_s.get(canary.model, float("-inf"))
        is_busy = canary.model in engines and engines[canary.model].is_busy
        if is_busy or self._clock() - last_s < FRESH_S:
            return None  # a busy model is not a dead one
        try:
            await self._service.perform(canary, CANARY_TIMEOUT_S)
        except Overloaded:
            return None
        except TriptychError as error:
            return f"{canary.model} did not answer a canary ({error.wire})"
        return None


def canaries(model: LoadedModel) -> list[Call]:
    """The smallest calls that go through each of a model's parts."""
    manifest = model.manifest
    image = np.zeros(manifest.image.shape, np.uint8) if manifest.image else None
    ids = np.array(model.tokenizer.encode("a"), dtype=np.int64)
    found: list[Call] = []
    if manifest.generator is not None:
        name = SOURCE_IDS if model.reads_source else PROMPT_IDS
        inputs: dict[str, Array] = {name: ids} if image is None else {PIXELS: image}
        once = Overrides(num_beams=1, num_return_sequences=1, max_new_tokens=1)
        found.append(GenerateCall(manifest.generator, manifest.version, inputs, once))
        return found
    smallest: dict[Role, Array] = {
        Role.TOKENS: ids[None],
        Role.LENGTHS: np.array([len(ids)], dtype=np.int32),
    }
    if image is not None:
        smallest[Role.PIXELS] = image[None]
    for key, graph in manifest.graphs.items():
        part = Part(manifest.parts[key], manifest.version, graph)
        roles = [port.role for port in graph.inputs if port.role in smallest]
        returned = next(port.role for port in graph.outputs if port.role)
        found.append(InferCall.of(part, {role: smallest[role] for role in roles}, (returned,)))
    return found
