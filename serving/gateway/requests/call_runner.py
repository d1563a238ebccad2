"""Single calls to Triton, for requests and for canaries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from inference.errors import InternalError, ServingError
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import Call, GenerateCall, InferCall, Outcome, Result
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.token_latency import RequestTimes
from serving.gateway.triton_client.dynamic_batcher import DynamicBatcher
from serving.gateway.triton_client.inference import Inference
from serving.settings.gateway_settings import GatewaySettings

Take = Callable[[TokenChunk], Awaitable[bool]]
"""Takes tokens of a sequence as they are generated; returns whether further ones are needed."""


class CallRunner:
    """Runs calls. Lives on one event loop.

    Args:
        inference: Runs the models; closed by `close`.
        settings: Limits of joined calls.
        metrics: Joined calls are counted there.
    """

    def __init__(self, inference: Inference, settings: GatewaySettings, metrics: Metrics) -> None:
        self.inference = inference
        self.last_result_s: dict[str, float] = {}
        """Model (of Triton) → monotonic time of its last result, or of its last tokens."""
        self._batcher = DynamicBatcher(
            inference.infer,
            metrics,
            max_calls=settings.max_calls_per_model,
            max_tokens=settings.max_batch_tokens,
        )

    @property
    def waiting(self) -> int:
        """Stateless calls that wait to be sent."""
        return self._batcher.waiting

    async def perform(self, call: Call, timeout_s: float) -> Result:
        """The result of a call by itself: it is not joined with others.

        Raises:
            ServingError: the call failed.
        """
        result: Result
        if isinstance(call, InferCall):
            result = await self.inference.infer(call, timeout_s)
        else:
            result = await self.inference.generate(call, timeout_s)
        self.last_result_s[call.model] = time.monotonic()
        return result

    async def joined(self, call: InferCall, timeout_s: float) -> tuple[Outcome, float]:
        """The outcome of a call that may be joined with others, and the time it was sent."""
        outcome, sent_s = await self._batcher.outcome(call, timeout_s)
        if not isinstance(outcome, ServingError):
            self.last_result_s[call.model] = time.monotonic()
        return outcome, sent_s

    async def read(self, call: GenerateCall, times: RequestTimes, take: Take) -> Finished | None:
        """Read a sequence while it is generated; the call is ended when no more is needed.

        Returns:
            The whole result; None for a call that was ended.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()
        async with aclosing(self.inference.stream(call, times.left_s)) as stream:
            async for tokens in stream:
                self.last_result_s[call.model] = time.monotonic()
                if isinstance(tokens, Finished):
                    return tokens
                latency.observe(len(tokens.token_ids))
                if not await take(tokens):
                    return None
        raise InternalError(f"{call.model} ended without a response")

    async def close(self) -> None:
        """End all calls and close the connection."""
        await self._batcher.close()
        await self.inference.close()
