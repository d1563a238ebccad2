"""Ready means: every model is loaded, has answered lately, and the gateway is not draining."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from serving.errors import Overloaded, TriptychError
from serving.gateway.service import Service
from serving.generation import Overrides
from serving.interface import EMBEDDING, LENGTHS, PIXELS, PROMPT_IDS, SOURCE_IDS, TOKEN_IDS
from serving.tasks.call import Array, Call, GenerateCall, InferCall
from serving.tasks.model import LoadedModel

CANARY_TIMEOUT_S = 5.0
FRESH_S = 10.0
"""A model that answered anybody within this time is alive; canaries run only when it is idle."""


class Readiness:
    """Asked by `/ready` and gRPC health; one round of canaries at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._canaries = tuple(
            canary for model in service.catalog.models for canary in canaries(model)
        )
        self._lock = asyncio.Lock()

    async def problem(self) -> str | None:
        """Why the gateway is not ready; None when it is."""
        if self._service.is_draining:
            return "the gateway is shutting down"
        async with self._lock:
            problems = await asyncio.gather(*map(self._problem, self._canaries))
        return next((problem for problem in problems if problem), None)

    async def _problem(self, canary: Call) -> str | None:
        if not await self._service.inference.is_ready(canary.model, canary.version):
            return f"{canary.model} version {canary.version} is not loaded"
        last_s = self._service.last_answer_s.get(canary.model, float("-inf"))
        if time.monotonic() - last_s < FRESH_S:
            return None
        try:
            await self._service.perform(canary, CANARY_TIMEOUT_S)
        except Overloaded:
            return None  # busy is not dead
        except TriptychError as error:
            return f"{canary.model} did not answer a canary ({error.wire})"
        return None


def canaries(model: LoadedModel) -> list[Call]:
    """The smallest calls that go through each of a model's parts."""
    manifest = model.manifest
    image = np.zeros(manifest.image.shape, np.uint8) if manifest.image else None
    ids = np.array(model.tokenizer.encode("a"), dtype=np.int64)
    found: list[Call] = []
    if "generate" in manifest.parts:
        text = SOURCE_IDS if model.reads_source else PROMPT_IDS
        inputs: dict[str, Array] = {text: ids} if image is None else {PIXELS: image}
        once = Overrides(num_beams=1, num_return_sequences=1, max_new_tokens=1)
        found.append(GenerateCall(manifest.parts["generate"], manifest.version, inputs, once))
    if "image" in manifest.parts and image is not None:
        part = manifest.parts["image"]
        found.append(InferCall(part, manifest.version, {PIXELS: image[None]}, EMBEDDING))
    if "text" in manifest.parts:
        text: dict[str, Array] = {
            TOKEN_IDS: ids[None],
            LENGTHS: np.array([len(ids)], dtype=np.int32),
        }
        found.append(InferCall(manifest.parts["text"], manifest.version, text, EMBEDDING))
    return found
