"""Reads a generated sequence until its text contains a stop string."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from inference.errors import InternalError
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.model_calls import GenerateCall, ended_early
from serving.gateway.observability.token_latency import TokenLatency


async def until_stopped(
    stream: AsyncGenerator[TokenChunk | Finished, None],
    call: GenerateCall,
    text: IncrementalText,
    latency: TokenLatency | None,
) -> Finished:
    """A call's result; its stream is closed, which ends the call, as soon as the text is complete.

    Args:
        stream: Of the call.
        call: The call.
        text: Reads its tokens.
        latency: Token times of its request.
    """
    sequence = latency.sequence() if latency else None
    async with aclosing(stream):
        async for tokens in stream:
            if isinstance(tokens, Finished):
                return tokens
            if sequence:
                sequence.observe(len(tokens.token_ids))
            text.add(tokens)
            if text.is_stopped:
                return ended_early(call, text)
    raise InternalError(f"{call.model} ended without a response")
