"""Single calls to Triton for requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from inference.errors import InternalError, ServingError
from inference.generation import Overrides
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import (
    GenerateCall,
    InferCall,
    Outcome,
    Outputs,
    ended_early,
)
from serving.gateway.admission.counts import Counts
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.request_record import RequestTimes, SequenceLatency
from serving.gateway.triton_client.dynamic_batcher import DynamicBatcher
from serving.gateway.triton_client.inference import Inference
from serving.gateway.triton_client.recovery import Recovery
from serving.settings.gateway_settings import GatewaySettings

Take = Callable[[TokenChunk], Awaitable[bool]]
"""Takes tokens of a sequence as they are generated; returns whether further ones are needed."""


class CallRunner:
    """Runs calls, those of requests again if their model ends meanwhile. Lives on one event loop.

    Args:
        inference: Runs the models; closed by `close`.
        settings: Limits of joined calls.
        metrics: Joined calls are counted there.
        counts: What is admitted now.
    """

    def __init__(
        self, inference: Inference, settings: GatewaySettings, metrics: Metrics, counts: Counts
    ) -> None:
        self.inference = inference
        self._metrics = metrics
        self._recovery = Recovery(
            inference, settings.recovery_timeout, metrics, counts.requests_elsewhere
        )
        self._batcher = DynamicBatcher(
            self._infer,
            metrics,
            max_calls=settings.max_calls_per_model,
            max_tokens=settings.max_batch_tokens,
            infer_joined=self._infer_joined if settings.recovery_timeout else None,
            replicas=inference.replicas,
        )

    @property
    def waiting(self) -> int:
        """Stateless calls that wait to be sent."""
        return self._batcher.waiting

    async def joined(self, call: InferCall, timeout_s: float) -> tuple[Outcome, float]:
        """The outcome of a call that may be joined with others, and the time it was sent."""
        try:
            self._recovery.quarantine.check(call)
        except ServingError as error:
            return error, time.monotonic()
        return await self._batcher.outcome(call, timeout_s)

    async def whole(self, call: GenerateCall, times: RequestTimes) -> Finished:
        """The result of a sequence, which a stop string may end; a lost one begins anew.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()

        async def attempt(left_s: float) -> Finished:
            if call.read is None:
                return await self.inference.generate(call, left_s)
            text = call.read()

            async def take(tokens: TokenChunk) -> bool:
                text.add(tokens)
                return not text.is_stopped

            return await self._read(call, left_s, latency, take) or ended_early(call, text)

        return await self._recovery.run(call, times.left_s, attempt)

    async def read(self, call: GenerateCall, times: RequestTimes, take: Take) -> Finished | None:
        """Read a sequence while it is generated; the call is ended when no more is needed.

        A lost sequence goes on behind the tokens that were taken (D102).

        Returns:
            The whole result, of a lost sequence without those tokens; None for a call that was
            ended.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()
        options = call.options
        if options.seed is None:  # of a sample: it is the same one when it goes on
            options = options.model_copy(update={"seed": secrets.randbits(63)})
        taken: list[int] = []

        async def attempt(left_s: float) -> Finished | None:
            if taken:
                self._metrics.kept_tokens.labels(call.model).inc(len(taken))
            return await self._read(_behind(call, options, taken), left_s, latency, note)

        async def note(tokens: TokenChunk) -> bool:
            taken.extend(tokens.token_ids)
            return await take(tokens)

        return await self._recovery.run(call, times.left_s, attempt)

    async def close(self) -> None:
        """End all calls and close the connection."""
        await self._batcher.close()
        self._recovery.close()
        await self.inference.close()

    async def _read(
        self, call: GenerateCall, timeout_s: float, latency: SequenceLatency, take: Take
    ) -> Finished | None:
        async with aclosing(self.inference.stream(call, timeout_s)) as stream:
            async for tokens in stream:
                if isinstance(tokens, Finished):
                    return tokens
                latency.observe(len(tokens.token_ids))
                if not await take(tokens):
                    return None
        raise InternalError(f"{call.model} ended without a response")

    async def _infer(self, call: InferCall, timeout_s: float) -> Outputs:
        async def attempt(left_s: float) -> Outputs:
            return await self.inference.infer(call, left_s)

        return await self._recovery.run(call, timeout_s, attempt)

    async def _infer_joined(self, call: InferCall, timeout_s: float) -> Outputs:
        return await self._recovery.once(call, timeout_s, self.inference.infer(call, timeout_s))


def _behind(call: GenerateCall, options: Overrides, taken: Sequence[int]) -> GenerateCall:
    """The call that goes on behind tokens."""
    generated = {"generated_ids": tuple(taken)} if taken else {}
    return replace(call, options=options.model_copy(update=generated))
