"""Ready means: every model is loaded, lives, and the gateway is not draining.

A generator lives when its heart beats (`serving.heartbeat`), however busy it is; only an idle model
that has answered nobody lately is asked something, a canary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np

from serving.bundle import Part, Role
from serving.errors import Overloaded, TriptychError
from serving.gateway.service import Service
from serving.generation import Overrides
from serving.heartbeat import Vitals
from serving.interface import PIXELS, PROMPT_IDS, SOURCE_IDS
from serving.tasks.call import Array, Call, GenerateCall, InferCall
from serving.tasks.model import LoadedModel

CANARY_TIMEOUT_S = 5.0
FRESH_S = 10.0
"""A model that answered anybody within this time is alive; a heart may stand still so long."""


async def _unknown() -> dict[str, Vitals]:
    return {}


class Readiness:
    """Asked by `/ready` and gRPC health; one round at a time.

    Args:
        service: Whose models.
        look: Reads the engines' vitals, by model (of Triton).
        clock: Seconds.
    """

    def __init__(
        self,
        service: Service,
        look: Callable[[], Awaitable[dict[str, Vitals]]] = _unknown,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._look = look
        self._clock = clock
        self._seen: dict[str, tuple[Vitals, float]] = {}
        """What was read last, and when its beat was new."""
        self._lock = asyncio.Lock()

    async def problem(self) -> str | None:
        """Why the gateway is not ready; None when it is."""
        if self._service.is_draining:
            return "the gateway is shutting down"
        calls = [call for model in self._service.catalog.models for call in canaries(model)]
        async with self._lock:
            self._note(await self._look())
            problems = await asyncio.gather(*map(self._problem, calls))
        return next((problem for problem in problems if problem), None)

    def _note(self, engines: dict[str, Vitals]) -> None:
        now_s = self._clock()
        for model, vitals in engines.items():
            before, since_s = self._seen.get(model, (None, now_s))
            is_new = before is None or (before.incarnation, before.beats) != (
                vitals.incarnation,
                vitals.beats,
            )
            self._seen[model] = (vitals, now_s if is_new else since_s)
        self._seen = {model: self._seen[model] for model in engines}

    async def _problem(self, canary: Call) -> str | None:
        if not await self._service.inference.is_ready(canary.model, canary.version):
            return f"{canary.model} version {canary.version} is not loaded"
        vitals, since_s = self._seen.get(canary.model, (None, 0.0))
        if vitals and self._clock() - since_s > FRESH_S:
            return f"{canary.model} has had no heartbeat for {self._clock() - since_s:.0f} s"
        last_s = self._service.last_answer_s.get(canary.model, float("-inf"))
        is_busy = vitals is not None and vitals.is_busy
        if is_busy or self._clock() - last_s < FRESH_S:
            return None  # busy is not dead
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
