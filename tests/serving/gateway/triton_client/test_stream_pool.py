"""Sequences share a stream, but not where Triton may refuse one beside the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from inference.engine.codec import ABORT
from serving.gateway.triton_client.stream_pool import StreamPool


class FakeStream:
    """Takes requests and never responds."""

    def __init__(self, requests: AsyncIterable[ModelInferRequest]) -> None:
        self.sent: list[ModelInferRequest] = []
        self.has_ended = asyncio.Event()
        self._sending = asyncio.ensure_future(self._send(requests))

    async def _send(self, requests: AsyncIterable[ModelInferRequest]) -> None:
        async for request in requests:
            self.sent.append(request)
        self.has_ended.set()

    def cancel(self) -> bool:
        self.has_ended.set()
        return True

    async def __aiter__(self) -> AsyncIterator[ModelStreamInferResponse]:
        await self.has_ended.wait()
        return
        yield


class Streams(list[FakeStream]):
    """Opens streams and keeps them."""

    def __call__(self, requests, *, metadata=None) -> FakeStream:
        self.append(FakeStream(requests))
        return self[-1]

    @property
    def sent(self) -> list[list[tuple[str, bool]]]:
        """Ids of each stream's requests, and whether they abort."""
        return [[(one.id, ABORT in one.parameters) for one in each.sent] for each in self]

    def end(self) -> None:
        for stream in self:
            stream.cancel()


def request(name: str, version: int = 1) -> ModelInferRequest:
    return ModelInferRequest(model_name="model", model_version=str(version), id=name)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_sequences_of_a_version_that_may_be_gone_have_streams_of_their_own() -> None:
    streams = Streams()
    pool = StreamPool(streams)
    pool.begin(request("a"))
    pool.note_served("model", 2)
    for name, version in (("b", 1), ("c", 1), ("d", 2), ("e", 2)):
        pool.begin(request(name, version))
    await settled()
    names = [[name for name, _ in each] for each in streams.sent]
    assert names == [["a", "d", "e"], ["b"], ["c"]]
    streams.end()
    await asyncio.gather(*pool.reading)


async def test_a_version_that_may_be_gone_gets_no_abort_message() -> None:
    streams = Streams()
    pool = StreamPool(streams)
    first, second = pool.begin(request("a")), pool.begin(request("b"))
    first.abort()
    pool.note_served("model", 2)
    second.abort()
    await settled()
    assert streams.sent == [[("a", False), ("b", False), ("a", True)]]
    streams.end()
    await asyncio.gather(*pool.reading)


async def test_stream_is_open_while_it_gets_sequences() -> None:
    streams = Streams()
    pool = StreamPool(streams)
    pool.begin(request("a"))
    ((stream,),) = pool._streams.values()
    for name in ("b", "c"):
        stream._review()
        pool.begin(request(name))
    stream._review()
    assert stream.is_open
    stream._review()
    assert not stream.is_open
    pool.begin(request("d"))
    await settled()
    assert [[name for name, _ in each] for each in streams.sent] == [["a", "b", "c"], ["d"]]
    streams.end()
    await asyncio.gather(*pool.reading)


async def test_stream_of_an_aborted_sequence_that_does_not_end_gets_no_others() -> None:
    streams = Streams()
    pool = StreamPool(streams)
    pool.begin(request("a")).abort()
    pool.begin(request("b"))
    ((stream,),) = pool._streams.values()
    stream._review()
    pool.begin(request("c"))
    await settled()
    assert streams.sent == [[("a", False), ("a", True), ("b", False)], [("c", False)]]
    streams.end()
    await asyncio.gather(*pool.reading)
