"""Single calls to Triton for requests."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from inference.errors import InternalError, ServingError, Unavailable
from inference.generation import Overrides
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import (
    Call,
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
from serving.gateway.triton_client.endpoint import Share
from serving.gateway.triton_client.pool import TritonPool, Work
from serving.gateway.triton_client.retry_policy import Act, ModelCalls, Quarantine, RetryPolicy
from serving.settings.gateway_settings import GatewaySettings

log = logging.getLogger(__name__)

T = TypeVar("T")
Take = Callable[[TokenChunk], Awaitable[bool]]
"""Takes tokens of a sequence as they are generated; returns whether further ones are needed."""


class CallRunner:
    """Runs calls, and sends those of requests again (`RetryPolicy`). Lives on one event loop.

    Args:
        pool: The servers; closed by `close`.
        settings: Limits of joined calls, and the time for which calls wait for their model.
        metrics: Joined calls, and those that are sent again, are counted there.
        counts: What is admitted now: while other processes have requests, no call is alone.
    """

    def __init__(
        self, pool: TritonPool, settings: GatewaySettings, metrics: Metrics, counts: Counts
    ) -> None:
        self.pool = pool
        self._metrics = metrics
        self._counts = counts
        self._wait_s = settings.recovery_timeout
        self._quarantine = Quarantine()
        self._by_model: defaultdict[str, ModelCalls] = defaultdict(ModelCalls)
        self._batcher = DynamicBatcher(
            self._infer,
            metrics,
            max_calls=settings.max_calls_per_model,
            max_tokens=settings.max_batch_tokens,
            infer_joined=partial(self._infer, is_joined=True) if self._wait_s else None,
            replicas=pool.replicas,
        )

    @property
    def waiting(self) -> int:
        """Stateless calls that wait to be sent."""
        return self._batcher.waiting

    async def joined(self, call: InferCall, timeout_s: float) -> tuple[Outcome, float]:
        """The outcome of a call that may be joined with others, and the time it was sent."""
        try:
            self._quarantine.check(call)
        except ServingError as error:
            return error, time.monotonic()
        return await self._batcher.outcome(call, timeout_s)

    async def whole(self, call: GenerateCall, times: RequestTimes) -> Finished:
        """The result of a sequence, which a stop string may end; a lost one begins anew.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()

        async def read_whole(share: Share, left_s: float) -> Finished:
            if call.read is None:
                return await share.endpoint.server.generate(call, left_s)
            text = call.read()

            async def take(tokens: TokenChunk) -> bool:
                text.add(tokens)
                return not text.is_stopped

            found = await self._stream(share, call, left_s, latency, take)
            return found or ended_early(call, text)

        return await self.run(call, times.left_s, read_whole)

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

        async def stream(share: Share, left_s: float) -> Finished | None:
            if taken:
                self._metrics.kept_tokens.labels(call.model).inc(len(taken))
            behind = _behind(call, options, taken)
            return await self._stream(share, behind, left_s, latency, note)

        async def note(tokens: TokenChunk) -> bool:
            taken.extend(tokens.token_ids)
            return await take(tokens)

        return await self.run(call, times.left_s, stream)

    async def close(self) -> None:
        """End all calls and close the connections."""
        await self._batcher.close()
        await self.pool.close()

    async def run(
        self, call: Call, timeout_s: float, work: Work[T], *, is_joined: bool = False
    ) -> T:
        """The result of a call, which is sent as often as its `RetryPolicy` has it.

        Args:
            timeout_s: Of all attempts.
            work: Runs the call on a server.
            is_joined: Whether the call is several, which their caller sends again apart once their
                model is up.

        Raises:
            Quarantined: the process of the model ended because of this call.
            ServingError: the call failed, or the model was not up again in time.
        """
        self._quarantine.check(call)
        policy = RetryPolicy(timeout_s, self._wait_s)
        failure: Unavailable | None = None
        if self.pool.is_awaited(call):  # known not to be up: nothing is sent
            failure = Unavailable(f"{call.model} is not up: try again", retry_after_s=1)
        calls = self._by_model[call.model]
        while True:
            await_up = partial(self._await_up, call, failure, policy)
            async with calls.turn(await_up, is_alone=policy.is_suspect) as sent:
                try:
                    return await self.pool.send(call, policy, work)
                except Unavailable as error:
                    failure = error
            others = self.pool.has_others(call, policy.tried)
            was_alone = not (sent.is_shared or self._counts.requests_elsewhere())
            act = policy.act(failure, has_others=others, was_alone=was_alone)
            if act is Act.OTHER_SERVER:
                failure = None
                continue
            if act is Act.RAISE:
                raise failure
            if act is Act.QUARANTINE:
                self._metrics.quarantined_calls.labels(call.model).inc()
                log.error(
                    "a request ended the process of its model %d times and is refused for a while",
                    policy.losses,
                    extra={"model": call.model},
                )
                raise self._quarantine.add(call) from failure
            if is_joined:
                await self._await_up(call, failure, policy)
                raise failure
            self._metrics.resent_calls.labels(call.model).inc()

    async def _await_up(self, call: Call, failure: Unavailable | None, policy: RetryPolicy) -> None:
        """Wait until the version of a call that failed is up again.

        Raises:
            Unavailable: the failure, if it is not in time; `is_not_loaded`, if another version is
                served.
        """
        if failure is None:
            return
        try:
            async with asyncio.timeout(policy.left_s):
                served = await self.pool.awaited(call, self._wait_s)
        except TimeoutError:
            raise failure from None
        if served != call.version:
            failure.is_not_loaded = served is not None
            raise failure

    async def _stream(
        self,
        share: Share,
        call: GenerateCall,
        timeout_s: float,
        latency: SequenceLatency,
        take: Take,
    ) -> Finished | None:
        """The whole result of a sequence whose tokens are taken; None if no more were needed.

        Raises:
            Unavailable: the call failed; `is_moved`, if it goes on at another server.
        """
        async with aclosing(share.endpoint.server.stream(call, timeout_s)) as stream:
            async for tokens in stream:
                if isinstance(tokens, Finished):
                    return tokens
                share.take(len(tokens.token_ids))
                latency.observe(len(tokens.token_ids))
                if not await take(tokens):
                    return None
                self.pool.move(share.endpoint, call)
        raise InternalError(f"{call.model} ended without a response")

    async def _infer(
        self, call: InferCall, timeout_s: float, *, is_joined: bool = False
    ) -> Outputs:
        async def infer(share: Share, left_s: float) -> Outputs:
            return await share.endpoint.server.infer(call, left_s)

        return await self.run(call, timeout_s, infer, is_joined=is_joined)


def _behind(call: GenerateCall, options: Overrides, taken: Sequence[int]) -> GenerateCall:
    """The call that goes on behind tokens."""
    generated = {"generated_ids": tuple(taken)} if taken else {}
    return replace(call, options=options.model_copy(update=generated))
