"""One sequence's stream to Triton, which is not cancelled but called off.

Cancelling a gRPC stream leaves it to the model to ask whether anybody is still there, and when the
last response is sent in that moment, Triton 2.51 forgets the request and keeps its model loaded for
ever. So whoever leaves says so on the same stream (`serving.interface.CALL_OFF`), and the stream
then comes to its natural end, read by a task that nobody waits for.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from tritonclient.grpc import InferResult
from tritonclient.grpc.aio import InferenceServerClient

from serving.interface import CALL_OFF

PATIENCE_S = 10.0
"""For the end of a stream that was called off; the process behind it may be dead."""


class SequenceStream:
    """Opens at once. Made and used on one event loop.

    Args:
        client: The connection.
        request: Keyword arguments of tritonclient's `infer`.
    """

    def __init__(self, client: InferenceServerClient, **request: Any) -> None:
        self._request = {**request, "request_id": uuid.uuid4().hex}
        self._has_ended = False
        self._may_close = asyncio.Event()
        self._told: asyncio.Queue[InferResult | Exception | None] = asyncio.Queue()
        self._answers = client.stream_infer(self._requests())
        self.reading = asyncio.create_task(self._read())

    async def responses(self) -> AsyncIterator[InferResult]:
        """Responses as they come, until the last.

        Raises:
            InferenceServerException: what Triton answered.
            RpcError: the connection broke.
        """
        while (told := await self._told.get()) is not None:
            if isinstance(told, Exception):
                raise told
            yield told

    def leave(self) -> None:
        """Call the sequence off, unless it has ended; returns at once."""
        self._may_close.set()
        if not self.reading.done():
            timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._answers.cancel)
            self.reading.add_done_callback(lambda _: timer.cancel())

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        """The request; then, if somebody leaves before its end, that it is called off."""
        yield dict(self._request)
        await self._may_close.wait()
        if not self._has_ended:
            yield {**self._request, "parameters": {CALL_OFF: True}}

    async def _read(self) -> None:
        """Reads in a task of its own: a reader that is cancelled would cancel the stream."""
        try:
            async for result, error in self._answers:
                self._told.put_nowait(result if error is None else error)
                if error is not None or _is_last(result):
                    self._has_ended = True
                    self._may_close.set()
        except asyncio.CancelledError:  # by `leave`, or by the end of the program
            pass
        except Exception as error:  # whoever waits for responses is told
            self._told.put_nowait(error)
        finally:
            self._may_close.set()
            self._told.put_nowait(None)


def _is_last(result: InferResult) -> bool:
    parameters = result.get_response().parameters
    return "triton_final_response" in parameters and parameters["triton_final_response"].bool_param
